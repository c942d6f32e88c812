"""Packs: the whole segments of one micro-batch, end to end, chosen by a look-ahead best fit.

A global batch is `n_streams` packs, one from each stream. Stream j reads only the global samples j, j + n_streams, ...
So the packs are a function of (seed, step), whatever the number of processes.
Random choices inside a segment (chunks, sentences, skips) are drawn from (seed, sample).
A stream holds `look_ahead` segments; a pack takes the oldest one and then, repeatedly, the longest
that still fits. No segment is cut or dropped. A stream's state is the number of packs that it has given, the next
sample and the waiting samples.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from lab.core.arrays import IGNORE, IntArray
from lab.core.errors import ConfigError, DataError
from lab.data.arrangement import Arrangement, TokenRun
from lab.data.config import DataConfig
from lab.data.preparation import shard_folder
from lab.data.segments import Segment, SegmentIndex, index_segments, sample_segments
from lab.data.selecting import Selection
from lab.data.shards import TokenStore
from lab.evidence.base import Evidence, in_ids
from lab.evidence.weights import ByEvidence

OF_WEIGHTS = 1  # marks the draws of a pack's weights, which those of its first sample do not share
AssignIds = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # tokens of a run -> rotary ids


@dataclass(frozen=True, eq=False)
class Pack:
    """One micro-batch.

    `lengths` are those of its runs, each a causal row to attention. `position_ids` is None where ids count from 0 in
    every run; `anchors` holds the index of each run's anchor, -1 for none, or is None where there are no anchors.
    `selected` counts, where sentences are selected, the runs, those without an impactful sentence, and those shorter
    than the budget. `distances` are the targets' evidence distances, None without a method. `weights` holds for
    the scored targets that have a loss; None if all do. `stored` are the targets'
    numbers from beside the shards, by kind.

    Shapes: `tokens`, `targets`, `position_ids` int64 (pack_tokens,), padding at the end with token 0, target IGNORE and
    id 0; `distances` int64, `stored` float64 and `weights` bool as `tokens`; `state` int64
        (2 + look_ahead,) of the stream after this pack.
    """

    tokens: np.ndarray
    targets: np.ndarray
    lengths: list[int]
    stream: int
    state: np.ndarray
    position_ids: np.ndarray | None = None
    anchors: tuple[int, ...] | None = None
    selected: tuple[int, int, int] | None = None
    distances: np.ndarray | None = None
    weights: np.ndarray | None = None
    stored: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class PackSettings:
    """What the streams of a run have in common: the text, and how packs are filled and arranged."""

    store: TokenStore
    segments: SegmentIndex
    pack_tokens: int
    seed: int
    look_ahead: int
    n_streams: int = 1
    arrangement: Arrangement = field(default_factory=Arrangement)
    skip: AssignIds | None = None
    selection: Selection | None = None
    evidence: Evidence | None = None
    beside: Mapping[str, TokenStore] = field(default_factory=dict)
    weights: ByEvidence | None = None
    block: Callable[[int], int] | None = None  # the number of a stream's pack -> tokens of a block of the window


class PackStream:
    """One of the streams of packs, at its beginning or at a saved state."""

    def __init__(self, settings: PackSettings, stream: int = 0, state: Sequence[int] | None = None) -> None:
        self.settings, self.stream = settings, stream
        self.given = 0  # packs
        self.next_sample = stream
        self.waiting: list[tuple[int, int]] = []  # (length, -sample) rising: among equal lengths the oldest is last
        self.drawn: dict[int, tuple[Segment, int]] = {}  # each waiting sample and its length, the oldest first
        self.ahead: list[Segment] = []  # of the next samples, the last first
        if state is not None:
            self.given, self.next_sample = int(state[0]), int(state[1])
            samples = sorted(int(sample) for sample in state[2:] if sample >= 0)
            for sample, segment in zip(samples, self._located(np.array(samples, dtype=np.int64))):
                self._wait(sample, segment)

    def __iter__(self) -> PackStream:
        return self

    def __next__(self) -> Pack:
        settings = self.settings
        while len(self.waiting) < settings.look_ahead:
            if not self.ahead:  # numbering and locating many at a time costs little more than one
                samples = self.next_sample + settings.n_streams * np.arange(settings.look_ahead)
                self.ahead = self._located(samples)[::-1]
            self._wait(self.next_sample, self.ahead.pop())
            self.next_sample += settings.n_streams
        oldest = next(iter(self.drawn))
        length = self.drawn[oldest][1]
        del self.waiting[bisect_left(self.waiting, (length, -oldest))]
        chosen = [oldest]
        room = settings.pack_tokens - length
        while (fit := bisect_right(self.waiting, (room, 1))) > 0:
            length, negated = self.waiting.pop(fit - 1)
            chosen.append(-negated)
            room -= length
        return self._pack(chosen)

    def state(self) -> np.ndarray:
        """Return the stream's state, int64 (2 + look_ahead,), padded with -1."""
        padding = [-1] * (self.settings.look_ahead - len(self.drawn))
        return np.array([self.given, self.next_sample, *self.drawn, *padding], dtype=np.int64)

    def _located(self, samples: IntArray) -> list[Segment]:
        segments = self.settings.segments
        return [*map(segments.locate, sample_segments(samples, segments.n, self.settings.seed).tolist())]

    def _wait(self, sample: int, segment: Segment) -> None:
        settings = self.settings
        selection = self.settings.selection
        length = segment.length + int(settings.arrangement.mask.is_anchored)
        if selection is not None:
            length = selection.length(settings.store.read(segment.start, segment.length).astype(np.int64))
        if length > settings.pack_tokens:
            rule = f"must hold the longest segment, {length} tokens; use data.window or more"
            raise ConfigError(f"train.micro_batch_tokens={settings.pack_tokens}: {rule}")
        self.drawn[sample] = segment, length
        insort(self.waiting, (length, -sample))

    def _read(self, segment: Segment) -> tuple[IntArray, IntArray, IntArray]:
        """Read a segment's tokens, those targets that are scored, and the numbers of the tokens' documents."""
        start, length, continues = segment
        store = self.settings.store
        read = store.read(start, length + continues).astype(np.int64)
        documents = store.document_numbers(start, len(read))
        follows = documents[1:] == documents[:-1]
        if not store.scores_all:
            follows &= store.read(start, len(read), "scored")[1:] != 0
        targets = np.full(length, IGNORE, dtype=np.int64)
        np.copyto(targets[: len(follows)], read[1:], where=follows)
        return read[:length], targets, documents[:length]

    def _runs(self, sample: int) -> list[TokenRun]:
        """Arrange a sample as the runs that the mask, the skips or the selection make of it."""
        settings, (segment, _) = self.settings, self.drawn.pop(sample)
        tokens, targets, documents = self._read(segment)
        generator = np.random.default_rng([settings.seed, sample])
        if settings.selection is not None:
            return [settings.selection.sample(tokens, targets, generator)]
        block = None if settings.block is None else settings.block(self.given)
        runs = settings.arrangement.runs(tokens, targets, documents, generator, block)
        if settings.skip is None:
            return runs
        return [TokenRun(run.tokens, run.targets, settings.skip(run.tokens, generator), run.anchored) for run in runs]

    def _pack(self, chosen: list[int]) -> Pack:
        selection = self.settings.selection
        segments = [self.drawn[sample][0] for sample in chosen]
        runs = [run for sample in chosen for run in self._runs(sample)]
        self.given += 1
        lengths = [len(run.tokens) for run in runs]

        def row(parts: list[IntArray], padding: int) -> IntArray:
            out = np.full(self.settings.pack_tokens, padding, dtype=np.int64)
            np.concatenate(parts, out=out[: sum(lengths)])
            return out

        tokens = row([run.tokens for run in runs], 0)
        targets = row([run.targets for run in runs], IGNORE)
        plain = all(run.ids[0] == 0 and run.ids[-1] == len(run.ids) - 1 for run in runs)
        ids = None if plain else row([run.ids for run in runs], 0)
        anchors = None
        if self.settings.arrangement.mask.is_anchored:  # the run before an anchored one is its anchor, or shares it
            anchored = [run.anchored for run in runs]
            firsts = np.where(anchored, 0, np.cumsum(lengths) - lengths)
            anchors = tuple(np.where(anchored, np.maximum.accumulate(firsts), -1).tolist())
        selected = None
        if selection is not None:
            short = sum(len(run.tokens) < selection.budget for run in runs)
            selected = len(runs), sum(not run.matched for run in runs), short
        evidence, weights = self.settings.evidence, self.settings.weights
        stored = {kind: self._stored(numbers, segments) for kind, numbers in self.settings.beside.items()}
        distances = None
        if evidence is not None:
            distances = evidence.distances(tokens, targets, lengths, stored.get(evidence.method))
        pack = Pack(
            tokens, targets, lengths, self.stream, self.state(), ids, anchors, selected, distances, stored=stored
        )
        if weights is None:
            return pack
        generator = np.random.default_rng([self.settings.seed, chosen[0], OF_WEIGHTS])
        return replace(pack, weights=weigh_by_evidence(weights, pack, generator))

    def _stored(self, numbers: TokenStore, segments: list[Segment]) -> np.ndarray:
        """Read the numbers of the targets of segments, end to end; the split's last token has no target."""
        out = np.zeros(self.settings.pack_tokens)
        begin = 0
        for start, length, _ in segments:
            read = numbers.read(start + 1, length)
            out[begin : begin + len(read)] = read
            begin += length
        return out


def count_samples(state: np.ndarray, stream: int, n_streams: int) -> int:
    """Count the samples in a stream's packs: all it has read, every n-th one from its own, but those that still wait.

    Example:
        >>> count_samples(np.array([2, 13, 7, 10, -1]), stream=1, n_streams=3)  # it has read 1, 4, 7, 10
        2
    """
    return int((state[1] - stream) // n_streams - np.count_nonzero(state[2:] >= 0))


def weigh_by_evidence(weights: ByEvidence, pack: Pack, generator: np.random.Generator) -> np.ndarray:
    """Choose the targets of a pack that keep their loss."""
    scored = pack.targets != IGNORE
    assert pack.distances is not None, "a run has an evidence method"
    distances = pack.distances
    if weights.distance == "ids" and pack.position_ids is not None:
        distances = in_ids(distances, pack.position_ids)
    answers = pack.stored["answers"] != 0 if weights.control == "kind" else None
    return scored & ~weights.dropped(distances, scored, generator, answers)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of text of one length; a target is the next token, or IGNORE across documents and where none is scored.

    Shapes: `tokens` and `targets` int64 (windows, length).
    """

    tokens: IntArray
    targets: IntArray

    def rows(self) -> list[IntArray]:
        """List each window's tokens, followed by the next one if it is a target."""
        pairs = zip(self.tokens, self.targets[:, -1:], strict=True)
        return [np.concatenate([tokens, last[last != IGNORE]]) for tokens, last in pairs]


def held_out_windows(data: DataConfig, *, length: int, windows: int, seed: int) -> Windows:
    """Draw windows of joined held-out documents, without overlap.

    Raises: DataError if there are too few.
    """
    store = TokenStore.open(shard_folder(data), "held_out")
    if store.n_tokens // length < windows:
        rule = f"the held-out documents hold {store.n_tokens // length} windows of {length} tokens"
        remedy = "lower it, shorten --length, raise data.held_out_frac, or use --text"
        raise DataError(f"--windows={windows}: {rule}; {remedy}")
    segments = index_segments(store, "concatenated", length)
    settings = PackSettings(store=store, segments=segments, pack_tokens=length, seed=seed, look_ahead=1)
    packs = list(islice(PackStream(settings), windows))
    return Windows(np.stack([pack.tokens for pack in packs]), np.stack([pack.targets for pack in packs]))
