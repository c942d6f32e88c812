"""The components that a strategy draws: segments of a length, or windows whose chunks of contiguous ids are set apart.

choose and pack draw segments; one of n tokens has max(n - i, 0) pairs at distance i. choose draws the corpus's own, by
classes of length; pack cuts joined documents to any of a grid of lengths.

skip draws windows of n tokens in k chunks, the first g of them in one group and the others in a second, with v ids free
between the chunks of a group and u between the groups:

    k = 4, g = 2     |chunk| v |chunk|    u    |chunk| v |chunk|         n + (k - 2) v + u <= T

u is drawn anew for every sample from a cell of its grid, so that no single distance dominates. Two chunks of m and l
tokens that begin d apart have, at distance i, the convolution of two boxes, in R(z) = max(z, 0) and t = i - d:

    pairs(i) = R(t + m) - R(t) - R(t + m - l) + R(t - l)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from lab.shape.config import Choose
from lab.shape.planning import Components
from lab.shape.profiles import FloatArray, IntArray

LENGTHS = 64  # lengths that pack cuts to, and classes of length that choose draws from
CHUNKS = (1, 2, 4, 8, 16, 32)
LEAST_CHUNK = 4  # tokens
GAPS = 12  # cells of the grid of u, and values of v
PLACES = 4  # values of u in its cell that planning averages over


def pairs_of_lengths(lengths: IntArray, edges: IntArray) -> FloatArray:
    """Count the pairs of segments by bins of distances.

    Shapes: (segments,), (bins + 1,) -> float64 (segments, bins).
    Example:
        >>> pairs_of_lengths(np.array([4, 1]), np.array([1, 2, 5])).tolist()
        [[3.0, 3.0], [0.0, 0.0]]
    """
    n = lengths[:, None].astype(np.float64)
    x = np.minimum(edges - 1, n)  # longest distance counted, which no pair exceeds
    return np.diff(x * n - x * (x + 1) / 2, axis=1)


def length_classes(window: int) -> IntArray:
    """Cut the lengths 1 .. window into classes: edge c is the first length of class c; full windows are the last class.

    Example:
        >>> length_classes(4).tolist()
        [1, 2, 3, 4, 5]
    """
    edges = np.linspace(1, window, min(LENGTHS, window)).round().astype(np.int64)
    return np.append(np.unique(edges), window + 1)


def choosing(config: Choose, counts: IntArray, edges: IntArray) -> Components:
    """Build components from the corpus's segments by classes of length, limited to max_repeats times the natural rate.

    Shapes: counts (window + 1,), how many segments have n tokens; edges of the bins (bins + 1,).
    """
    classes = length_classes(len(counts) - 1)
    segments = np.add.reduceat(counts, classes[:-1]).astype(np.float64)
    each = np.maximum(segments, 1)
    lengths = np.arange(len(counts))
    tokens = np.add.reduceat(counts * lengths, classes[:-1])
    pairs = np.add.reduceat(counts[:, None] * pairs_of_lengths(lengths, edges), classes[:-1], axis=0)
    limits = config.max_repeats * segments / tokens.sum()
    tokens = np.where(segments > 0, tokens / each, classes[:-1])
    return Components(pairs / each[:, None], tokens, limits)


def packing_lengths(window: int) -> IntArray:
    """List the lengths that joined documents are cut to.

    Example:
        >>> packing_lengths(3).tolist()
        [1, 2, 3]
    """
    return length_classes(window)[:-1]


def packing(window: int, edges: IntArray) -> Components:
    """Build components from every length of the grid, without limit."""
    lengths = packing_lengths(window)
    return Components(pairs_of_lengths(lengths, edges), lengths.astype(np.float64), np.full(len(lengths), np.inf))


@dataclass(frozen=True)
class Layout:
    """Chunks of a window: how many, how many in the first group, ids free inside groups, and between them at most."""

    chunks: int
    first: int
    inner: int
    between: tuple[int, int]

    def starts(self, n_tokens: int, between: int) -> tuple[IntArray, IntArray]:
        """Compute the chunks' lengths and first ids.

        Example:
            >>> [x.tolist() for x in Layout(4, 2, 1, (0, 9)).starts(8, 5)]
            [[2, 2, 2, 2], [0, 3, 10, 13]]
        """
        ends = np.arange(self.chunks + 1) * n_tokens // self.chunks
        groups = np.arange(self.chunks) >= self.first
        gaps = np.arange(self.chunks) * self.inner + groups * (between - self.inner)
        return np.diff(ends), ends[:-1] + gaps

    def ids(self, n_tokens: int, generator: np.random.Generator) -> IntArray:
        """Draw the ids of a sample.

        Shapes: int64 (n_tokens,), strictly increasing from 0.
        """
        lengths, starts = self.starts(n_tokens, int(generator.integers(*self.between)))
        offsets = starts - (np.cumsum(lengths) - lengths)
        ids: IntArray = np.arange(n_tokens, dtype=np.int64) + np.repeat(offsets, lengths)
        return ids


def layouts(n_tokens: int, target_len: int) -> list[Layout]:
    """List the layouts whose ids stay below the target window."""
    room = target_len - n_tokens
    found = [Layout(1, 1, 0, (0, 1))]
    for k in (k for k in CHUNKS[1:] if n_tokens // k >= LEAST_CHUNK):
        inner = [0] if k == 2 else np.unique(np.linspace(0, room // (k - 2), GAPS).astype(int)).tolist()
        for first, v in product(sorted({1, k // 2}), inner):
            if first == 1 and k > 2 and v == 0:
                continue  # two contiguous stretches, of which k / 2 has more
            cells = np.unique(np.linspace(0, room - (k - 2) * v + 1, GAPS + 1).astype(int)).tolist()
            found += [Layout(k, first, v, (low, high)) for low, high in pairwise(cells)]
    return found


def skipping(options: list[Layout], n_tokens: int, edges: IntArray) -> Components:
    """Build components from windows in every layout."""
    pairs = np.stack([mean_pairs(layout, n_tokens, edges) for layout in options])
    return Components(pairs, np.full(len(options), float(n_tokens)), np.full(len(options), np.inf))


def mean_pairs(layout: Layout, n_tokens: int, edges: IntArray) -> FloatArray:
    """Count a window's pairs by bins of distances, averaged over some values of u in its cell.

    Shapes: (bins,).
    """
    low, high = layout.between
    places = np.unique((low + (np.arange(PLACES) + 0.5) / PLACES * (high - low)).astype(int))
    counted: list[FloatArray] = [pairs_of_chunks(*layout.starts(n_tokens, int(u)), edges) for u in places]
    mean: FloatArray = np.mean(counted, axis=0)
    return mean


def pairs_of_chunks(lengths: IntArray, starts: IntArray, edges: IntArray) -> FloatArray:
    """Count the pairs of contiguous chunks by bins of distances.

    Shapes: (chunks,), (chunks,), (bins + 1,) -> float64 (bins,).
    Example:
        >>> pairs_of_chunks(np.array([2, 1]), np.array([0, 4]), np.arange(1, 6)).tolist()
        [1.0, 0.0, 1.0, 1.0]
    """
    a, b = np.triu_indices(len(lengths), 1)
    m, n, apart = lengths[a][:, None], lengths[b][:, None], (starts[b] - starts[a])[:, None]
    t = edges - 1 - apart
    across = triangle(t + m) - triangle(t) - triangle(t + m - n) + triangle(t - n)
    within = pairs_of_lengths(lengths, edges).sum(0)
    counted: FloatArray = within + np.diff(across, axis=1).sum(0)
    return counted


def triangle(z: IntArray) -> FloatArray:
    """Sum max(y, 0) over whole y <= z."""
    high = np.maximum(z, 0).astype(np.float64)
    return high * (high + 1) / 2
