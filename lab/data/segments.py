"""The segments of a split by number: where each begins, how long it is, whether its document continues after it.

A segment is a piece of at most L tokens of one document. The three modes (arXiv:2410.18745, Figure 1):

    natural       single documents, long ones cut every L tokens
    concatenated  documents joined, cut every L tokens, so that every window is full
    uniform       documents joined, cut so that every length 1..L is equally frequent

Every mode locates segment i without reading the segments before it. In mode natural an index, which is computed when a
split is opened, counts the segments before every GROUP-th document: it takes 31 MB and 9 s for a billion documents.

Samples are shuffled without memory, by a keyed permutation evaluated at one index at a time. A four-round Feistel
network permutes the numbers of 2h bits, the smallest even width for n numbers. A result outside 0 .. n - 1 is permuted
again until it is inside, so that the map stays a permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from lab.core.errors import DataError
from lab.core.types import IntArray
from lab.data.config import Mode
from lab.data.shards import TokenStore

Numbers = np.typing.NDArray[np.uint64]
GROUP = 256  # documents


class Segment(NamedTuple):
    """`length` tokens from index `start` of the split; `continues` if the next token belongs to the same document."""

    start: int
    length: int
    continues: bool


def index_segments(store: TokenStore, mode: Mode, window: int) -> NaturalSegments | CutSegments:
    """Number the segments of a split.

    Raises: DataError if the split is shorter than one window of a mode that needs full windows.
    """
    if mode == "natural":
        return NaturalSegments(store, window)
    lengths = [window]
    if mode == "uniform":  # a block has each of 1 .. window once, in an order that the window alone decides
        lengths = (1 + permute(np.arange(window, dtype=np.uint64), window, key=window)).tolist()
    if store.n_tokens < sum(lengths):
        raise DataError(
            f"data.mode={mode}: needs {sum(lengths)} tokens at data.window={window}, the split has {store.n_tokens}; "
            "use mode: natural, a shorter window or more text"
        )
    return CutSegments(store, lengths)


class NaturalSegments:
    """Documents cut every `window` tokens; located by each shard's running count of segments by group of documents."""

    def __init__(self, store: TokenStore, window: int) -> None:
        self.store, self.window = store, window
        self.counts = [count_groups(shard.ends, window) for shard in store.shards]
        self.starts = np.cumsum([0, *(int(counts[-1]) for counts in self.counts)])
        self.n = int(self.starts[-1])

    def locate(self, number: int) -> Segment:
        """Locate a segment's shard, its group, its document, then the piece."""
        index, number = find(self.starts, number)
        shard = self.store.shards[index]
        # the index narrows the search to a group, whose documents are then counted: memory grows with groups alone
        group, number = find(self.counts[index], number)
        first = group * GROUP
        counts = count_segments(shard.ends[first : first + GROUP], self.window, shard.part(first).start)
        document, piece = find(counts, number)
        part = shard.part(first + document)
        start = part.start + piece * self.window
        left = part.stop - start
        return Segment(self.store.starts[index] + start, min(left, self.window), left > self.window)


class CutSegments:
    """Blocks of joined documents, each cut to the same lengths in the same order.

    The split's last tokens, less than a block, are skipped.
    """

    def __init__(self, store: TokenStore, lengths: list[int]) -> None:
        self.store = store
        self.ends = [0, *accumulate(lengths)]
        self.n = store.n_tokens // self.ends[-1] * len(lengths)

    def locate(self, number: int) -> Segment:
        """Locate a segment's block, then the piece in the cut that all blocks share."""
        block, piece = divmod(number, len(self.ends) - 1)
        start = block * self.ends[-1] + self.ends[piece]
        length = self.ends[piece + 1] - self.ends[piece]
        return Segment(start, length, start + length < self.store.n_tokens)


SegmentIndex = NaturalSegments | CutSegments  # segments numbered 0 .. n - 1


def find(counts: IntArray, number: int) -> tuple[int, int]:
    """Return the index of the last count that is at most a number, and the difference."""
    index = int(counts.searchsorted(number, side="right")) - 1
    return index, number - int(counts[index])


def count_segments(ends: IntArray, window: int, begin: int = 0) -> IntArray:
    """Count the segments before each document, and all: int64 (documents + 1,); the first document begins at `begin`.

    Documents without tokens have none.
    """
    # -(-a // b) rounds up
    return np.append(0, np.cumsum(-(-np.diff(ends, prepend=begin) // window)))


def count_groups(ends: IntArray, window: int) -> IntArray:
    """Count the segments before each group of documents, and all: int64 (groups + 1,)."""
    counts = count_segments(ends, window)
    # a copy, as a slice would keep the counts of all documents in memory
    return np.append(counts[:-1:GROUP], counts[-1])


def permute(indices: Numbers, n: int, key: int) -> Numbers:
    """Return the images of indices under the permutation of 0 .. n - 1 that `key` selects."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)  # bits: half of the smallest even number for 0 .. n - 1
    keys = [mix(key * 4 + turn) for turn in range(4)]
    images: Numbers = feistel(indices, half, keys)
    while len(outside := np.flatnonzero(images >= n)):
        images[outside] = feistel(images[outside], half, keys)
    return images


def feistel(value: Any, half: int, keys: Sequence[int]) -> Any:
    """Permute the numbers of 2 * half bits."""
    low_mask = (1 << half) - 1
    left, right = value >> half, value & low_mask
    # a round can be undone whatever `mix` returns, as the right half moves to the left unchanged
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & low_mask)
    return left << half | right


def mix(value: Any) -> Any:
    """Scramble 64 bits (the splitmix64 finaliser)."""
    # the mask is for Python's integers, which have no width; those of numpy wrap around at 64 bits by themselves
    mask = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)


def sample_segments(samples: IntArray, n: int, seed: int) -> IntArray:
    """Return the segments of global samples; every epoch of n samples is a shuffle of its own."""
    epochs, indices = np.divmod(samples, n)
    segments = np.empty_like(samples)
    for epoch in np.unique(epochs).tolist():
        of_epoch = epochs == epoch
        segments[of_epoch] = permute(indices[of_epoch].astype(np.uint64), n, key=mix(seed) ^ mix(mix(epoch)))
    return segments
