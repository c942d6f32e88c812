"""Related documents as neighbours, for windows that join documents.

    c_b = tokens of a document in bucket b of N_BUCKETS,  b = (token * HASH mod 2^32) >> 22
    v_b = ln(1 + c_b) * ln(1 + n / n_b)         n documents in the shard, n_b of them with a token in b
    similarity(x, y) = v(x) . v(y) / (|v(x)| |v(y)|)

The documents of a source are divided into blocks of at most MOST by halving: at the median of that principal axis (of
AXES, found on a sample of the source) along which they vary most. Within a block each document is followed by the most
similar remaining one (greedy nearest neighbour, the first in a tie). Copies of a document go into different rounds,
each ordered separately; the blocks of every source are then spread evenly over the shard.

Vectors are rounded to whole multiples of 1 / SCALE and axes to those of 1 / GRID, so that all dot products are exact
and the order does not depend on the number of threads.

Source: ours, similar to in-context pretraining (arXiv:2310.10638), which orders a whole corpus by retrieval, and SPLiCe
(arXiv:2312.17296), which grows windows from a document and its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.data.shards import Shard
from lab.data.upsampling import Ints, parted

Floats = npt.NDArray[np.float32]

N_BUCKETS = 1024
HASH = 2654435761  # Knuth's multiplicative hash: 2^32 over the golden ratio
SCALE = 2048  # similarities times SCALE^2 stay below 2^24, where float32 holds every whole number
MOST = 1000
SAMPLE = 2000  # documents of a source from which its axes are computed
AXES = 8
GRID = 1024  # a vector times an axis stays below SCALE * GRID = 2^21, exact in float32


@dataclass
class Similarity:
    """Sum of the similarities of neighbours, and their number."""

    total: float = 0.0
    pairs: int = 0

    def add(self, ordered: Floats) -> None:
        """Add the neighbours among documents in a row."""
        self.total += float(np.einsum("ij,ij->", ordered[1:], ordered[:-1], dtype=np.float64)) / SCALE**2
        self.pairs += max(0, len(ordered) - 1)


def related_order(shard: Shard, copies: Ints) -> tuple[Ints, Similarity, Similarity]:
    """Order a shard's copies so that related documents of one source are neighbours.

    Returns the order and the similarity of neighbours within blocks, in corpus order and in this one.

    Shapes: `copies` int64 (documents,); the order int64 (sum of copies,), indices of documents.
    """
    weights = bucket_weights(shard)
    places, before, after = np.zeros((len(copies), AXES), np.float32), Similarity(), Similarity()
    for members in by_source(shard, copies >= 0):
        sample = members[:: -(-len(members) // SAMPLE)]
        axes = principal_axes(vectors(shard, sample, weights)) if len(members) > MOST else None
        for part in np.split(members, range(MOST, len(members), MOST)):
            seen = vectors(shard, part, weights)
            before.add(seen)
            if axes is not None:
                places[part] = seen @ axes
    placed: list[tuple[float, Ints]] = []  # place in the shard, from 0 to 1, and documents
    for turn in range(int(copies.max(initial=0))):
        for members in by_source(shard, copies > turn):
            blocks = halved(members, places)
            last = int(copies[shard.sources == shard.sources[members[0]]].max())
            for number, block in enumerate(blocks):
                seen = vectors(shard, block, weights)
                order = chain(seen)
                after.add(seen[order])
                placed.append(((turn + number / len(blocks)) / last, block[order]))
    placed.sort(key=lambda item: item[0])
    return parted(np.concatenate([np.zeros(0, np.int64), *(block for _, block in placed)])), before, after


def by_source(shard: Shard, wanted: npt.NDArray[np.bool_]) -> Iterator[Ints]:
    """Yield the wanted documents of each source that has some."""
    for source in range(len(shard.source_names)):
        members = np.flatnonzero(wanted & (shard.sources == source))
        if len(members):
            yield members


def bucket_counts(tokens: npt.NDArray[np.integer]) -> Ints:
    """Count a document's tokens by bucket: int64 (N_BUCKETS,)."""
    counts: Ints = np.bincount(tokens.astype(np.uint32) * np.uint32(HASH) >> np.uint32(22), minlength=N_BUCKETS)
    return counts


def bucket_weights(shard: Shard) -> npt.NDArray[np.float64]:
    """Compute the buckets' inverse document frequencies, ln(1 + n / n_b): float64 (N_BUCKETS,)."""
    having = np.zeros(N_BUCKETS, dtype=np.int64)
    for document in range(len(shard.ends)):
        having += bucket_counts(shard.tokens[shard.part(document)]) > 0
    weights: npt.NDArray[np.float64] = np.log(1 + len(shard.ends) / np.maximum(having, 1))
    return weights


def vectors(shard: Shard, documents: Ints, weights: npt.NDArray[np.float64]) -> Floats:
    """Compute unit vectors of documents, in whole multiples of 1 / SCALE: float32 (documents, N_BUCKETS)."""
    counts = np.stack([bucket_counts(shard.tokens[shard.part(document)]) for document in documents.tolist()])
    weighted = np.log1p(counts) * weights
    lengths = np.sqrt((weighted**2).sum(1, keepdims=True))
    whole: Floats = np.rint(SCALE * weighted / np.maximum(lengths, 1e-300)).astype(np.float32)
    return whole


def principal_axes(seen: Floats) -> Floats:
    """Compute the directions in which vectors vary most, in whole multiples of 1 / GRID: float32 (N_BUCKETS, AXES)."""
    wide = seen.astype(np.float64)
    centre = wide.mean(0)
    _, found = np.linalg.eigh(wide.T @ wide / len(wide) - np.outer(centre, centre))
    axes = found[:, -AXES:]
    largest = axes[np.abs(axes).argmax(0), np.arange(AXES)]  # fixes the sign, which eigh leaves open
    whole: Floats = np.rint(GRID * axes * np.sign(largest)).astype(np.float32)
    return whole


def halved(members: Ints, places: Floats) -> list[Ints]:
    """Divide documents, by their coordinates along the axes, into blocks of at most MOST related ones."""
    if len(members) <= MOST:
        return [members]
    along = places[members]
    order = np.argsort(along[:, along.var(0, dtype=np.float64).argmax()], kind="stable")
    half = len(members) // 2
    return [block for part in (order[:half], order[half:]) for block in halved(members[np.sort(part)], places)]


def chain(seen: Floats) -> Ints:
    """Order vectors greedily: from the first on, always to the most similar remaining one.

    Example:
        >>> chain(np.array([[4, 0], [0, 4], [3, 2], [1, 3]], dtype=np.float32)).tolist()
        [0, 2, 3, 1]
    """
    similarity = seen @ seen.T
    order = np.zeros(len(seen), dtype=np.int64)
    similarity[:, 0] = -1
    for place in range(1, len(seen)):
        order[place] = np.argmax(similarity[order[place - 1]])
        similarity[:, order[place]] = -1
    return order
