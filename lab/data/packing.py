"""Packs: the whole segments of one micro-batch, end to end, chosen by a look-ahead best fit.

A global batch is `n_streams` packs, one from each stream. Stream j reads only the global samples j, j + n_streams, ...,
so the packs are a function of (seed, step), whatever the number of processes.
Random choices inside a segment (chunks, sentences, skips) are drawn from (seed, sample).
A stream holds `look_ahead` segments; a pack takes the oldest one and then, repeatedly, the longest
that still fits. No segment is cut or dropped. A stream's state is the next sample and the waiting samples.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.data.arrangement import IGNORE, Arrangement, TokenRun
from lab.data.segments import Segment, SegmentIndex
from lab.data.selecting import Selection
from lab.data.shards import TokenStore
from lab.errors import ConfigError

__all__ = ["IGNORE", "AssignIds", "Pack", "PackStream"]
NUMBERED = 1024  # samples
AssignIds = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # tokens of a run -> rotary ids


@dataclass(frozen=True, eq=False)
class Pack:
    """One micro-batch.

    `lengths` are those of its runs, each a causal row to attention. `position_ids` is None where ids count from 0 in
    every run; `anchors` holds the index of each run's anchor, -1 for none, or is None where there are no anchors.
    `selected` counts, where sentences are selected, the runs, those without an impactful sentence, and those shorter
    than the budget.

    Shapes: `tokens`, `targets`, `position_ids` int64 (pack_tokens,), padding at the end with token 0, target IGNORE and
    id 0; `state` int64 (1 + look_ahead,) of the stream after this pack.
    """

    tokens: np.ndarray
    targets: np.ndarray
    lengths: list[int]
    stream: int
    state: np.ndarray
    position_ids: np.ndarray | None = None
    anchors: tuple[int, ...] | None = None
    selected: tuple[int, int, int] | None = None


class PackStream:
    """One of the `n_streams` streams of packs."""

    def __init__(
        self,
        store: TokenStore,
        segments: SegmentIndex,
        *,
        stream: int,
        n_streams: int,
        pack_tokens: int,
        seed: int,
        look_ahead: int,
        arrangement: Arrangement = Arrangement(),
        skip: AssignIds | None = None,
        selection: Selection | None = None,
        state: Sequence[int] | None = None,
    ) -> None:
        self.arrangement, self.skip, self.selection = arrangement, skip, selection
        self.arranges = skip is not None or selection is not None or arrangement.rearranges
        self.store, self.segments = store, segments
        self.stream, self.n_streams, self.pack_tokens = stream, n_streams, pack_tokens
        self.seed, self.look_ahead = seed, look_ahead
        self.next_sample = stream
        self.waiting: list[tuple[int, int]] = []  # (length, -sample) rising: among equal lengths the oldest is last
        self.drawn: dict[int, tuple[Segment, int]] = {}  # each waiting sample and its length, the oldest first
        self.ahead: list[Segment] = []  # of the next samples, the last first
        self.numbers: np.ndarray = np.zeros(0, dtype=np.int64)  # of the segments of the samples after these
        if state is not None:
            self.next_sample = int(state[0])
            samples = sorted(int(sample) for sample in state[1:] if sample >= 0)
            for sample, segment in zip(samples, segments.draw_all(np.array(samples, dtype=np.int64), seed)):
                self._wait(sample, segment)

    def __iter__(self) -> PackStream:
        """Return the endless iterator itself."""
        return self

    def __next__(self) -> Pack:
        """Fill the next pack."""
        while len(self.waiting) < self.look_ahead:
            if not self.ahead:
                self.ahead = self._draw()[::-1]
            self._wait(self.next_sample, self.ahead.pop())
            self.next_sample += self.n_streams
        oldest = next(iter(self.drawn))
        length = self.drawn[oldest][1]
        del self.waiting[bisect_left(self.waiting, (length, -oldest))]
        chosen, room = [oldest], self.pack_tokens - length
        while (fit := bisect_right(self.waiting, (room, 1))) > 0:
            length, negated = self.waiting.pop(fit - 1)
            chosen.append(-negated)
            room -= length
        return self._arrange_all(chosen) if self.arranges else self._copy(chosen)

    def state(self) -> np.ndarray:
        """Return the stream's state, int64 (1 + look_ahead,), padded with -1."""
        padding = [-1] * (self.look_ahead - len(self.drawn))
        return np.array([self.next_sample, *self.drawn, *padding], dtype=np.int64)

    def _draw(self) -> list[Segment]:
        """Locate the segments of the next samples; they are numbered many at a time, which costs little more."""
        if not len(self.numbers):
            samples = self.next_sample + self.n_streams * np.arange(NUMBERED)
            self.numbers = self.segments.numbers(samples, self.seed)
        numbers, self.numbers = np.split(self.numbers, [self.look_ahead])
        return self.segments.locate(numbers)

    def _wait(self, sample: int, segment: Segment) -> None:
        length = segment.length + self.arrangement.extra_tokens
        if self.selection is not None:
            length = self.selection.length(self.store.read(segment.start, segment.length).astype(np.int64))
        if length > self.pack_tokens:
            raise ConfigError(
                f"train.micro_batch_tokens={self.pack_tokens}: must hold the longest segment, {length} tokens; use "
                "data.window or more"
            )
        self.drawn[sample] = segment, length
        insort(self.waiting, (length, -sample))

    def _read(self, segment: Segment, tokens: np.ndarray, targets: np.ndarray) -> None:
        """Read a segment's tokens and those targets that are scored into arrays of its length."""
        start, length, continues = segment
        read = self.store.read(start, length + continues)
        tokens[:] = read[:length]
        targets[: len(read) - 1] = read[1:]
        if not self.segments.whole_documents:
            targets[self.store.borders(start, len(read)) - 1] = IGNORE
        if not self.store.scores_all:
            targets[: len(read) - 1][~self.store.scored(start, len(read))[1:]] = IGNORE

    def _copy(self, chosen: list[int]) -> Pack:
        """Lay out segments as they are in the corpus."""
        tokens, targets = self._empty()
        lengths, begin = [], 0
        for sample in chosen:
            segment, length = self.drawn.pop(sample)
            self._read(segment, tokens[begin : begin + length], targets[begin : begin + length])
            lengths.append(length)
            begin += length
        return Pack(tokens, targets, lengths, self.stream, self.state())

    def _empty(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(self.pack_tokens, dtype=np.int64), np.full(self.pack_tokens, IGNORE, dtype=np.int64)

    def _arrange_all(self, chosen: list[int]) -> Pack:
        """Lay out segments as the runs that the mask, the skips or the selection make of them."""
        runs: list[TokenRun] = []
        anchors: list[int] = []
        place = 0
        for sample in chosen:
            arranged = self._arrange(sample)
            anchors += [place if run.anchored else -1 for run in arranged]
            place += sum(len(run.tokens) for run in arranged)
            runs += arranged
        return self._lay_out(runs, tuple(anchors))

    def _arrange(self, sample: int) -> list[TokenRun]:
        segment, _ = self.drawn.pop(sample)
        tokens, targets = np.zeros(segment.length, dtype=np.int64), np.full(segment.length, IGNORE, dtype=np.int64)
        self._read(segment, tokens, targets)
        generator = np.random.default_rng([self.seed, sample])
        if self.selection is not None:
            return [select(self.selection, tokens, targets, generator)]
        documents = self.store.document_numbers(segment.start, segment.length)
        runs = self.arrangement.runs(tokens, targets, documents, generator)
        if self.skip is None:
            return runs
        return [TokenRun(run.tokens, run.targets, self.skip(run.tokens, generator), run.anchored) for run in runs]

    def _lay_out(self, runs: list[TokenRun], anchors: tuple[int, ...]) -> Pack:
        tokens, targets = self._empty()
        position_ids = np.zeros_like(tokens)
        begin, plain = 0, True
        for run in runs:
            part = slice(begin, begin + len(run.tokens))
            tokens[part], targets[part], position_ids[part] = run.tokens, run.targets, run.ids
            plain = plain and run.ids[0] == 0 and run.ids[-1] == len(run.ids) - 1
            begin = part.stop
        return Pack(
            tokens,
            targets,
            [len(run.tokens) for run in runs],
            self.stream,
            self.state(),
            None if plain else position_ids,
            anchors if self.arrangement.mask == "anchor" else None,
            None if self.selection is None else self._selected(runs),
        )

    def _selected(self, runs: list[TokenRun]) -> tuple[int, int, int]:
        assert self.selection is not None, "only selected sentences are counted"
        short = sum(len(run.tokens) < self.selection.budget for run in runs)
        return len(runs), sum(not run.matched for run in runs), short


def select(selection: Selection, tokens: np.ndarray, targets: np.ndarray, generator: np.random.Generator) -> TokenRun:
    """Build a sample of a window: its sentences and their ids; a target is scored where it follows in the sample.

    The next token of the text is not a target if it was left out: arXiv:2409.00509 does not specify the end of a
    sentence whose successor is removed, and the choice is ours.
    """
    sample = selection.sample(tokens, generator)
    follows = np.diff(sample.places, append=-1) == 1
    targets = np.where(follows, targets[sample.places], IGNORE)
    return TokenRun(tokens[sample.places], targets, sample.ids, matched=sample.matched)
