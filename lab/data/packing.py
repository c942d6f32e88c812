"""Packs: the whole segments of one micro-batch, laid end to end, chosen by a look-ahead best fit.

A global batch is `n_streams` packs, one from each stream. Stream j reads the global samples j, j + n_streams, ... and
nothing else, so the packs are a function of (seed, step) alone, whatever number of processes share the streams out.
A stream holds `look_ahead` segments; a pack takes the one that waits longest and then, again and again, the longest
that still fits. No segment is cut or dropped. A stream's state is the next sample and the samples that wait.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.data.order import sample_segment
from lab.data.segments import Segment, SegmentIndex
from lab.data.shards import TokenStore
from lab.errors import ConfigError

IGNORE = -100  # target of a token that is not scored; the value that torch's own loss ignores


@dataclass(frozen=True, eq=False)
class Pack:
    """One micro-batch.

    Shapes: `tokens` and `targets` int64 (pack_tokens,), padding at the end with token 0 and target IGNORE;
    `lengths` of its segments in order; `state` int64 (1 + look_ahead,) of the stream after this pack.
    """

    tokens: np.ndarray
    targets: np.ndarray
    lengths: list[int]
    stream: int
    state: np.ndarray


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
        state: Sequence[int] | None = None,
    ) -> None:
        self.store, self.segments = store, segments
        self.stream, self.n_streams, self.pack_tokens = stream, n_streams, pack_tokens
        self.seed, self.look_ahead = seed, look_ahead
        self.next_sample = stream
        self.waiting: list[tuple[int, int]] = []  # (length, -sample) rising: among equal lengths the oldest is last
        if state is not None:
            self.next_sample = int(state[0])
            for sample in state[1:]:
                if sample >= 0:
                    self._wait(int(sample))

    def __iter__(self) -> PackStream:
        """Iterate without end."""
        return self

    def __next__(self) -> Pack:
        """Fill the next pack."""
        while len(self.waiting) < self.look_ahead:
            self._wait(self.next_sample)
            self.next_sample += self.n_streams
        chosen = [self._take(min(range(len(self.waiting)), key=lambda k: -self.waiting[k][1]))]
        room = self.pack_tokens - chosen[0].length
        while (fit := bisect_right(self.waiting, (room, 1))) > 0:
            chosen.append(self._take(fit - 1))
            room -= chosen[-1].length
        return self._lay_out(chosen)

    def state(self) -> np.ndarray:
        """Give the stream's state, int64 (1 + look_ahead,), -1 where nothing waits."""
        state = np.full(1 + self.look_ahead, -1, dtype=np.int64)
        state[0] = self.next_sample
        state[1 : 1 + len(self.waiting)] = [-negated for _, negated in self.waiting]
        return state

    def _segment(self, sample: int) -> Segment:
        return self.segments[sample_segment(sample, self.segments.n, self.seed)]

    def _wait(self, sample: int) -> None:
        segment = self._segment(sample)
        if segment.length > self.pack_tokens:
            raise ConfigError(
                f"train.micro_batch_tokens={self.pack_tokens}: must hold the longest segment, {segment.length} tokens; "
                "use data.window or more"
            )
        insort(self.waiting, (segment.length, -sample))

    def _take(self, place: int) -> Segment:
        return self._segment(-self.waiting.pop(place)[1])

    def _lay_out(self, chosen: list[Segment]) -> Pack:
        tokens = np.zeros(self.pack_tokens, dtype=np.int64)
        targets = np.full(self.pack_tokens, IGNORE, dtype=np.int64)
        begin = 0
        for segment in chosen:
            ids = self.store.read(segment.start, segment.length + segment.continues)
            end = begin + segment.length
            tokens[begin:end] = ids[: segment.length]
            targets[begin : begin + len(ids) - 1] = ids[1:]
            begin = end
        return Pack(tokens, targets, [segment.length for segment in chosen], self.stream, self.state())
