"""The segments of a split by number: where each begins, how long it is, whether its document continues after it.

A segment is a piece of at most L tokens of one document. The three modes (arXiv:2410.18745, Figure 1):

    natural       single documents, long ones cut every L tokens
    concatenated  documents joined, cut every L tokens, so that every window is full
    uniform       documents joined, cut so that every length 1..L is equally frequent

Every mode locates segment i without reading the segments before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from lab.data.config import Mode
from lab.data.groups import GROUP, segment_counts
from lab.data.manifests import SPLITS, read_manifests
from lab.data.order import sample_segments, shuffled_all
from lab.data.shards import TokenStore, open_shard
from lab.errors import DataError

IntArray = npt.NDArray[np.int64]


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

    def draw_all(self, samples: IntArray, seed: int) -> list[Segment]:
        """Return the segments of global samples."""
        return self.locate(self.numbers(samples, seed))

    def draw(self, sample: int, seed: int) -> Segment:
        """Return the segment of one global sample."""
        return self.draw_all(np.array([sample]), seed)[0]


def index_segments(store: TokenStore, mode: Mode, window: int) -> SegmentIndex:
    """Number the segments of a split.

    Raises: DataError where the split is shorter than one window of a mode that needs full ones.
    """
    if mode == "natural":
        return NaturalSegments(store, window)
    if mode == "uniform":
        lengths = 1 + shuffled_all(np.arange(window, dtype=np.uint64), window, key=window)  # each of 1 .. window once
        return CutSegments(store, window, lengths.astype(np.int64).tolist(), "data.mode=uniform")
    refuse_short(store, window, window, "data.mode=concatenated")
    return ConcatenatedSegments(store, window)


class NaturalSegments(SegmentIndex):
    """Documents cut every `window` tokens; located by each shard's running count of segments by group of documents."""

    whole_documents = True

    def __init__(self, store: TokenStore, window: int) -> None:
        self.store, self.window = store, window
        self.counts = [shard.groups.segments(window) for shard in store.shards]
        self.starts = np.cumsum([0, *(int(counts[-1]) for counts in self.counts)])
        self.n = int(self.starts[-1])

    def locate(self, numbers: IntArray) -> list[Segment]:
        """Locate the shards, the groups, the documents, then the pieces."""
        shards = self.starts.searchsorted(numbers, side="right") - 1
        local = numbers - self.starts[shards]
        begins, ends = np.empty_like(local), np.empty((len(local), GROUP), dtype=np.int64)
        for shard in np.unique(shards).tolist():
            rows, counts, groups = np.flatnonzero(shards == shard), self.counts[shard], self.store.shards[shard].groups
            numbered = counts.searchsorted(local[rows], side="right")
            begins[rows], ends[rows] = groups.read(numbered)
            local[rows] -= groups.before(counts, numbered)
        pieces = segment_counts(ends, self.window, begins)
        documents, rows = (pieces > local[:, None]).argmax(1), np.arange(len(local))
        later = documents > 0
        begins[later] = ends[rows[later], documents[later] - 1]
        local[later] -= pieces[rows[later], documents[later] - 1]
        begins += local * self.window
        left = ends[rows, documents] - begins
        begins += self.store.token_starts[shards]
        return segments_of(begins, np.minimum(left, self.window), left > self.window)


class ConcatenatedSegments(SegmentIndex):
    """Windows of exactly `window` tokens; the split's last tokens, less than a window, are left out."""

    def __init__(self, store: TokenStore, window: int) -> None:
        self.window, self.n_tokens = window, store.n_tokens
        self.n = store.n_tokens // window

    def locate(self, numbers: IntArray) -> list[Segment]:
        """Return windows."""
        starts = numbers * self.window
        return segments_of(starts, np.full_like(starts, self.window), starts + self.window < self.n_tokens)


class CutSegments(SegmentIndex):
    """Blocks of joined documents, each cut to the same lengths in the same order.

    The split's last tokens, less than a block, are left out.

    Raises: DataError for a split shorter than a block; the message names `setting`.
    """

    def __init__(self, store: TokenStore, window: int, lengths: Sequence[int], setting: str) -> None:
        self.lengths, self.n_tokens = lengths, store.n_tokens
        self.ends = np.cumsum([0, *lengths])
        refuse_short(store, int(self.ends[-1]), window, setting)
        self.n = store.n_tokens // int(self.ends[-1]) * len(lengths)

    def locate(self, numbers: IntArray) -> list[Segment]:
        """Locate the blocks, then the pieces in the cut that all blocks share."""
        blocks, places = np.divmod(numbers, len(self.lengths))
        starts, stops = (blocks * self.ends[-1] + self.ends[places + k] for k in (0, 1))
        return segments_of(starts, stops - starts, stops < self.n_tokens)


def segments_of(starts: IntArray, lengths: IntArray, continues: npt.NDArray[np.bool_]) -> list[Segment]:
    """Build segments from their parts."""
    return list(map(Segment, starts.tolist(), lengths.tolist(), continues.tolist()))


def refuse_short(store: TokenStore, block: int, window: int, setting: str) -> None:
    """Refuse a split that does not hold `block` tokens.

    Raises: DataError.
    """
    if store.n_tokens < block:
        raise DataError(
            f"{setting}: needs {block} tokens at data.window={window}, the split has {store.n_tokens}; "
            f"use {'mode: natural, ' if setting.startswith('data.mode') else ''}a shorter window or more text"
        )


def index_documents(folder: Path, window: int) -> None:
    """Save the indices by which runs find documents and segments of `window` tokens, those that are missing.

    Raises: DataError for shards that are not what prepared.json records.
    """
    for path, manifest in read_manifests(folder).items():
        for split in SPLITS:
            if manifest["splits"][split]["tokens"]:
                groups = open_shard(path, manifest, split).groups
                assert len(groups.ends) == len(groups.segments(window)), "one number for each group"
