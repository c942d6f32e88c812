"""The segments of a split by number: where each begins, how long it is, whether its document continues after it.

A segment is a piece of at most L tokens of one document. The three modes (arXiv:2410.18745, Figure 1):

    natural       single documents, long ones cut every L tokens
    concatenated  documents joined, cut every L tokens, so that every window is full
    uniform       documents joined, cut so that every length 1..L is equally frequent

Every mode locates segment i without reading the segments before it. In mode natural an index, saved beside each shard,
counts the segments before every GROUP-th document: a billion documents have 31 MB of it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from lab.data.config import Mode
from lab.data.manifest import SPLITS, read_manifests
from lab.data.order import sample_segments, shuffled
from lab.data.shards import Shard, TokenStore
from lab.errors import DataError, DiskError
from lab.files import write_atomic

IntArray = npt.NDArray[np.int64]
GROUP = 256  # documents


class Segment(NamedTuple):
    """`length` tokens from index `start` of the split; `continues` if the next token belongs to the same document."""

    start: int
    length: int
    continues: bool


class SegmentIndex(ABC):
    """The segments of a split, numbered 0 .. n - 1."""

    n: int
    whole_documents: ClassVar[bool] = False
    """Whether a segment belongs to one document."""

    @abstractmethod
    def locate(self, numbers: IntArray) -> list[Segment]:
        """Return segments by their numbers."""

    def __getitem__(self, number: int) -> Segment:
        """Return one segment."""
        return self.locate(np.array([number]))[0]

    def numbers(self, samples: IntArray, seed: int) -> IntArray:
        """Number the segments of global samples: every segment once in n samples, each epoch in another order."""
        return sample_segments(samples, self.n, seed)


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
