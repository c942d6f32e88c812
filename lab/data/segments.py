"""The segments of a split by number: where each begins, how long it is, whether its document continues after it.

A segment is a piece of at most L tokens of one document. The three modes (arXiv:2410.18745, Figure 1):

    natural       single documents, long ones cut every L tokens
    concatenated  documents joined, cut every L tokens, so that every window is full
    uniform       documents joined, cut so that every length 1..L is equally frequent

Every mode locates segment i without reading the segments before it. In mode natural an index, saved beside each shard,
counts the segments before every GROUP-th document: a billion documents have 31 MB of it.

Samples are shuffled without memory, by a keyed permutation evaluated at one index at a time. A four-round Feistel
network permutes the numbers of 2h bits, the smallest even width that holds n; a result outside 0 .. n - 1 is permuted
again until it falls inside, which keeps the map a permutation.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from lab.data.config import Mode
from lab.data.shards import SPLITS, Shard, TokenStore, read_manifests
from lab.errors import DataError, DiskError
from lab.files import write_atomic

IntArray = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
GROUP = 256  # documents
ROUNDS = 4
MASK = 2**64 - 1


class Segment(NamedTuple):
    """`length` tokens from index `start` of the split; `continues` if the next token belongs to the same document."""

    start: int
    length: int
    continues: bool


class SegmentIndex:
    """The segments of a split, numbered 0 .. n - 1."""

    n: int
    whole_documents: ClassVar[bool] = False
    """Whether a segment belongs to one document."""

    def locate(self, numbers: IntArray) -> list[Segment]:
        """Return segments by their numbers."""
        raise NotImplementedError


def index_segments(store: TokenStore, mode: Mode, window: int) -> SegmentIndex:
    """Number the segments of a split.

    Raises: DataError where the split is shorter than one window of a mode that needs full ones.
    """
    if mode == "natural":
        return NaturalSegments(store, window)
    if mode == "uniform":
        lengths = 1 + shuffled(np.arange(window, dtype=np.uint64), window, key=window)  # each of 1 .. window once
    else:
        lengths = np.array([window], dtype=np.uint64)
    block = int(lengths.sum())
    if store.n_tokens < block:
        raise DataError(
            f"data.mode={mode}: needs {block} tokens at data.window={window}, the split has {store.n_tokens}; "
            "use mode: natural, a shorter window or more text"
        )
    return CutSegments(store, lengths.astype(np.int64))


class NaturalSegments(SegmentIndex):
    """Documents cut every `window` tokens; located by each shard's running count of segments by group of documents."""

    whole_documents = True

    def __init__(self, store: TokenStore, window: int) -> None:
        self.store, self.window = store, window
        self.counts = [group_counts(shard, window) for shard in store.shards]
        self.starts = np.cumsum([0, *(int(counts[-1]) for counts in self.counts)])
        self.n = int(self.starts[-1])

    def locate(self, numbers: IntArray) -> list[Segment]:
        """Locate the shards, the groups, the documents, then the pieces."""
        shards = self.starts.searchsorted(numbers, side="right") - 1
        local = numbers - self.starts[shards]
        begins = np.zeros_like(local)
        ends = np.empty((len(local), GROUP), dtype=np.int64)
        for shard in np.unique(shards).tolist():
            rows = np.flatnonzero(shards == shard)
            counts, own = self.counts[shard], self.store.shards[shard].ends
            groups = counts.searchsorted(local[rows], side="right")
            first = groups * GROUP
            # the last end is repeated in a group of fewer documents: documents without tokens have no segments
            ends[rows] = own.take(first[:, None] + np.arange(GROUP), mode="clip")
            begins[rows] = own[first - 1] * (groups > 0)
            local[rows] -= counts[groups - 1] * (groups > 0)
        pieces = segment_counts(ends, self.window, begins)
        documents = (pieces > local[:, None]).argmax(1)
        rows = np.arange(len(local))
        later = documents > 0
        begins[later] = ends[rows[later], documents[later] - 1]
        local[later] -= pieces[rows[later], documents[later] - 1]
        begins += local * self.window
        left = ends[rows, documents] - begins
        begins += self.store.token_starts[shards]
        return segments_of(begins, np.minimum(left, self.window), left > self.window)


class CutSegments(SegmentIndex):
    """Blocks of joined documents, each cut to the same lengths in the same order.

    The split's last tokens, less than a block, are left out.
    """

    def __init__(self, store: TokenStore, lengths: IntArray) -> None:
        self.n_tokens, self.ends = store.n_tokens, np.cumsum([0, *lengths.tolist()])
        self.n = store.n_tokens // int(self.ends[-1]) * len(lengths)

    def locate(self, numbers: IntArray) -> list[Segment]:
        """Locate the blocks, then the pieces in the cut that all blocks share."""
        blocks, places = np.divmod(numbers, len(self.ends) - 1)
        starts, stops = (blocks * self.ends[-1] + self.ends[places + k] for k in (0, 1))
        return segments_of(starts, stops - starts, stops < self.n_tokens)


def segments_of(starts: IntArray, lengths: IntArray, continues: npt.NDArray[np.bool_]) -> list[Segment]:
    """Build segments from their parts."""
    return list(map(Segment, starts.tolist(), lengths.tolist(), continues.tolist()))


def segment_counts(ends: IntArray, window: int, begins: IntArray | int = 0) -> IntArray:
    """Count the segments up to and including each document: int64, as `ends`, (documents,) or (rows, documents).

    The first document of each row begins at `begins`.
    """
    rounded = ends + (window - 1)
    rounded[..., :1] -= np.asarray(begins)[..., None]
    rounded[..., 1:] -= ends[..., :-1]
    rounded //= window
    counts: IntArray = rounded.cumsum(-1)
    return counts


def group_counts(shard: Shard, window: int) -> IntArray:
    """Read or compute, and then save, the segments up to and including each group of documents: int64 (groups,).

    The file's name holds a part of the hash of the documents' ends, so that the index of another shard is not read. A
    folder that cannot be written is no error.
    """
    digest = shard.manifest["files"][f"{shard.split}.ends.bin"]["sha256"][:8]
    path = shard.folder / f".segments-{shard.split}-{window}-{digest}.npy"
    with suppress(OSError, ValueError, EOFError):
        saved: IntArray = np.load(path, mmap_mode="r").view(np.ndarray)
        return saved
    counts = segment_counts(shard.ends, window)
    last = np.minimum(np.arange(GROUP, len(counts) + GROUP, GROUP), len(counts)) - 1
    found: IntArray = counts[last]
    buffer = io.BytesIO()
    np.save(buffer, found)
    with suppress(OSError, DiskError):
        write_atomic(path, buffer.getvalue())
    return found


def index_documents(folder: Path, window: int) -> None:
    """Save the indices by which runs find segments of `window` tokens, those that are missing.

    Raises: DataError for shards that are not what prepared.json records.
    """
    for path, manifest in read_manifests(folder).items():
        for split in SPLITS:
            if manifest["splits"][split]["tokens"]:
                group_counts(Shard.open(path, manifest, split), window)


def shuffled(indices: Numbers, n: int, key: int) -> Numbers:
    """Return the images of indices under the permutation of 0 .. n - 1 that `key` selects.

    Example:
        >>> sorted(shuffled(np.arange(10, dtype=np.uint64), 10, key=7).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)  # half the smallest even number of bits that holds 0 .. n - 1
    keys = [mix(key * ROUNDS + turn) for turn in range(ROUNDS)]
    images: Numbers = feistel(indices, half, keys)
    while len(outside := np.flatnonzero(images >= n)):
        images[outside] = feistel(images[outside], half, keys)
    return images


def feistel(value: Any, half: int, keys: Sequence[int]) -> Any:
    """Permute the numbers of 2 * half bits."""
    low_mask = (1 << half) - 1
    left, right = value >> half, value & low_mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & low_mask)
    return left << half | right


def mix(value: Any) -> Any:
    """Scramble 64 bits (the splitmix64 finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def sample_segments(samples: IntArray, n: int, seed: int) -> IntArray:
    """Return the segments of global samples; every epoch of n samples is a shuffle of its own."""
    epochs, places = np.divmod(samples, n)
    found = np.empty_like(samples)
    for epoch in np.unique(epochs).tolist():
        own = epochs == epoch
        found[own] = shuffled(places[own].astype(np.uint64), n, key=mix(seed) ^ mix(mix(epoch)))
    return found
