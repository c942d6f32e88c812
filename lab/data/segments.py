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
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lab.data.config import Mode
from lab.data.groups import segment_counts
from lab.data.order import sample_segment, shuffled
from lab.data.shards import SPLITS, TokenStore, open_shard, read_manifests
from lab.errors import DataError


@dataclass(frozen=True)
class Segment:
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
    def __getitem__(self, index: int) -> Segment:
        """Return one segment."""

    def draw(self, sample: int, seed: int) -> Segment:
        """Return the segment of a global sample: every segment once in n samples, each epoch in another order."""
        return self[sample_segment(sample, self.n, seed)]


def index_segments(store: TokenStore, mode: Mode, window: int) -> SegmentIndex:
    """Number the segments of a split.

    Raises: DataError where the split is shorter than one window of a mode that needs full ones.
    """
    if mode == "natural":
        return NaturalSegments(store, window)
    if mode == "uniform":
        lengths = [1 + shuffled(index, window, key=window) for index in range(window)]  # each of 1 .. window once
        return CutSegments(store, window, lengths, "data.mode=uniform")
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

    def __getitem__(self, index: int) -> Segment:
        """Locate the shard, the group, the document, then the piece."""
        shard = int(self.starts.searchsorted(index, side="right")) - 1
        counts, local = self.counts[shard], index - int(self.starts[shard])
        group = int(counts.searchsorted(local, side="right"))
        begin, ends = self.store.shards[shard].groups.read(group)
        local -= int(counts[group - 1]) if group else 0
        pieces = segment_counts(ends, self.window, begin)
        document = int(pieces.searchsorted(local, side="right"))
        if document:
            begin, local = int(ends[document - 1]), local - int(pieces[document - 1])
        begin += local * self.window
        length = min(self.window, int(ends[document]) - begin)
        return Segment(int(self.store.token_starts[shard]) + begin, length, begin + length < int(ends[document]))


class ConcatenatedSegments(SegmentIndex):
    """Windows of exactly `window` tokens; the split's last tokens, less than a window, are left out."""

    def __init__(self, store: TokenStore, window: int) -> None:
        self.window, self.n_tokens = window, store.n_tokens
        self.n = store.n_tokens // window

    def __getitem__(self, index: int) -> Segment:
        """Return one window."""
        start = index * self.window
        return Segment(start, self.window, start + self.window < self.n_tokens)


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

    def __getitem__(self, index: int) -> Segment:
        """Locate the block, then the piece in the cut that all blocks share."""
        block, place = divmod(index, len(self.lengths))
        start, stop = (block * int(self.ends[-1]) + int(end) for end in self.ends[place : place + 2])
        return Segment(start, stop - start, stop < self.n_tokens)


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
