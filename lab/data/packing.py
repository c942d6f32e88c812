"""Packs: the whole segments of one micro-batch, end to end, chosen by a look-ahead best fit.

A global batch is `n_streams` packs, one from each stream. Stream j reads only the global samples j, j + n_streams, ...
So the packs are a function of (seed, step), whatever the number of processes.
Random choices inside a segment (chunks, sentences, skips) are sampled by (seed, sample).
A stream buffers `look_ahead` segments; a pack takes the oldest one and then, repeatedly, the longest that still fits.
No segment is cut or dropped. A stream's state is the number of its packs, the next sample and the buffered samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from lab.core.errors import ConfigError, DataError
from lab.core.types import IGNORE, IntArray
from lab.data.config import DataConfig
from lab.data.preparation import shard_folder
from lab.data.segments import Segment, SegmentIndex, index_segments, sample_segments
from lab.data.selecting import Selection, split_sentences
from lab.data.shards import TokenStore
from lab.evidence.methods import Evidence, in_ids
from lab.evidence.weights import ByEvidence
from lab.masks import Arrangement, TokenRun
from lab.skip import BoolArray, Skip, skip_positions


@dataclass(eq=False)
class Pack:
    """One micro-batch.

    `lengths` are those of its runs, each a causal row to attention. `position_ids` is None if ids count from 0 in every
    run. `anchors` contains the index of each run's anchor, -1 for none; it is None without anchors. `selected` counts,
    if sentences are selected, the runs, those without an impactful sentence, and those shorter than the budget.
    `distances` are the targets' evidence distances, None without a method. `weights` is true for the scored targets
    that have a loss; None if all have. `n_bytes` are the targets' bytes in the original text, if the shards have them.
    `corpus` is the number of its corpus in a mixture.

    Shapes: `tokens`, `targets`, `position_ids` int64 (pack_tokens,), padding at the end with token 0, target IGNORE and
    id 0; `distances` and `n_bytes` int64, `weights` bool as `tokens`; `state` int64
        (2 + look_ahead,) of the stream after this pack.
    """

    tokens: np.ndarray
    targets: np.ndarray
    lengths: tuple[int, ...]
    stream: int
    state: np.ndarray
    position_ids: np.ndarray | None = None
    anchors: tuple[int, ...] | None = None
    selected: tuple[int, int, int] | None = None
    distances: np.ndarray | None = None
    weights: np.ndarray | None = None
    n_bytes: np.ndarray | None = None
    corpus: int = 0


@dataclass(eq=False, kw_only=True)
class PackSettings:
    """The settings that all streams of a run share: the text, and how packs are filled and arranged."""

    store: TokenStore
    segments: SegmentIndex
    pack_tokens: int
    seed: int
    look_ahead: int
    n_streams: int = 1
    arrangement: Arrangement = field(default_factory=Arrangement)
    skip: Skip | None = None
    sentence_ends: BoolArray | None = None  # of a skip that needs sentences
    selection: Selection | None = None
    evidence: Evidence | None = None
    bytes: TokenStore | None = None  # of each token, read for the targets
    weights: ByEvidence | None = None


class PackStream:
    """One of the streams of packs, from its start or from a saved state."""

    def __init__(self, settings: PackSettings, stream: int = 0, state: IntArray | None = None) -> None:
        self.settings, self.stream = settings, stream
        self.n_packs = 0
        self.next_sample = stream
        self.buffer: dict[int, tuple[Segment, int]] = {}  # each buffered sample with its length, the oldest first
        self.upcoming: list[Segment] = []  # of the next samples, in reverse
        if state is not None and len(state):
            self.n_packs, self.next_sample = state[:2].tolist()
            samples = np.sort(state[2:][state[2:] >= 0])
            for sample, segment in zip(samples.tolist(), self._locate(samples)):
                self._add(sample, segment)

    def __iter__(self) -> PackStream:
        return self

    def __next__(self) -> Pack:
        settings = self.settings
        while len(self.buffer) < settings.look_ahead:
            if not self.upcoming:  # numbering and locating many samples at once costs little more than one
                samples = self.next_sample + settings.n_streams * np.arange(settings.look_ahead)
                self.upcoming = self._locate(samples)[::-1]
            self._add(self.next_sample, self.upcoming.pop())
            self.next_sample += settings.n_streams
        oldest = next(iter(self.buffer))  # without it, a segment that seldom fits could stay for ever
        chosen, room = [], settings.pack_tokens
        # then the longest, of equal ones the oldest; one that does not fit now does not fit into less room later
        for sample in sorted(self.buffer, key=lambda sample: (sample != oldest, -self.buffer[sample][1])):
            length = self.buffer[sample][1]
            if length <= room:
                chosen.append(sample)
                room -= length
        return self._pack(chosen)

    def state(self) -> np.ndarray:
        """Return the stream's state, int64 (2 + look_ahead,), padded with -1."""
        padding = [-1] * (self.settings.look_ahead - len(self.buffer))
        return np.array([self.n_packs, self.next_sample, *self.buffer, *padding], dtype=np.int64)

    def _locate(self, samples: IntArray) -> list[Segment]:
        segments = self.settings.segments
        return [segments.locate(n) for n in sample_segments(samples, segments.n, self.settings.seed).tolist()]

    def _add(self, sample: int, segment: Segment) -> None:
        """Buffer a sample by the length that it takes of a pack."""
        settings = self.settings
        length = segment.length + int(settings.arrangement.mask.is_anchored)
        if settings.selection is not None:
            length = settings.selection.length(settings.store.read(segment.start, segment.length).astype(np.int64))
        if length > settings.pack_tokens:
            raise ConfigError(
                f"train.micro_batch_tokens={settings.pack_tokens}: must be at least the longest segment, {length} "
                "tokens; use data.window or more"
            )
        self.buffer[sample] = segment, length

    def _runs(self, segment: Segment, sample: int) -> list[TokenRun]:
        """Arrange a sample as the runs that the mask, the skips or the selection make of it."""
        settings = self.settings
        tokens, targets, documents = read_segment(settings.store, segment)
        generator = np.random.default_rng([settings.seed, sample])
        if settings.selection is not None:
            return [settings.selection.sample(tokens, targets, generator)]
        runs = settings.arrangement.runs(tokens, targets, documents, generator)
        if settings.skip is None:
            return runs
        skipped = []
        for run in runs:
            sentences = None
            if settings.sentence_ends is not None:
                sentences = split_sentences(run.tokens, settings.sentence_ends)
            ids = skip_positions(settings.skip, len(run.tokens), sentence_lengths=sentences, generator=generator)
            skipped.append(replace(run, ids=ids))
        return skipped

    def _row(self, parts: list[IntArray], padding: int) -> IntArray:
        row = np.concatenate(parts, dtype=np.int64)
        return np.pad(row, (0, self.settings.pack_tokens - len(row)), constant_values=padding)

    def _pack(self, samples: list[int]) -> Pack:
        settings = self.settings
        segments = {sample: self.buffer.pop(sample)[0] for sample in samples}
        runs = [run for sample, segment in segments.items() for run in self._runs(segment, sample)]
        self.n_packs += 1
        pack = Pack(
            tokens=self._row([run.tokens for run in runs], 0),
            targets=self._row([run.targets for run in runs], IGNORE),
            lengths=tuple(len(run.tokens) for run in runs),
            stream=self.stream,
            state=self.state(),
        )
        # ids rise within a run: from 0 to one less than its length they have no gaps, and the pack needs none
        if any(run.ids[0] != 0 or run.ids[-1] != len(run.ids) - 1 for run in runs):
            pack.position_ids = self._row([run.ids for run in runs], 0)
        if settings.arrangement.mask.is_anchored:
            pack.anchors = find_anchors(runs)
        if settings.selection is not None:
            n_unmatched = sum(not run.matched for run in runs)
            n_short = sum(len(run.tokens) < settings.selection.budget for run in runs)
            pack.selected = len(runs), n_unmatched, n_short
        if settings.bytes is not None:
            parts = []
            for start, length, _ in segments.values():
                read = settings.bytes.read(start + 1, length)  # a target is the next token
                parts.append(np.pad(read, (0, length - len(read))))  # the split's last token has none
            pack.n_bytes = self._row(parts, 0)
        if settings.evidence is not None:
            pack.distances = settings.evidence.distances(pack.tokens, pack.targets, pack.lengths)
        if settings.weights is not None:
            assert pack.distances is not None, "a run has an evidence method"
            distances = pack.distances
            if settings.weights.distance == "ids" and pack.position_ids is not None:
                distances = in_ids(distances, pack.position_ids)
            # without the third number of the seed the weights would have the random numbers of the first sample
            generator = np.random.default_rng([settings.seed, samples[0], 1])
            scored = pack.targets != IGNORE
            pack.weights = scored & ~settings.weights.dropped(distances, scored, generator)
        return pack


def read_segment(store: TokenStore, segment: Segment) -> tuple[IntArray, IntArray, IntArray]:
    """Read a segment's tokens, its scored targets, and the numbers of the tokens' documents."""
    start, length, continues = segment
    # a segment that continues has one token more: the target of its last token
    read = store.read(start, length + continues).astype(np.int64)
    documents = store.document_numbers(start, len(read))
    follows = documents[1:] == documents[:-1]
    if not store.scores_all:
        follows &= store.read(start, len(read), "scored")[1:] != 0
    targets = np.full(length, IGNORE, dtype=np.int64)
    np.copyto(targets[: len(follows)], read[1:], where=follows)
    return read[:length], targets, documents[:length]


def find_anchors(runs: list[TokenRun]) -> tuple[int, ...]:
    """Return the index of each run's anchor in the pack, -1 for none: the last run before it that is not anchored."""
    anchors: list[int] = []
    begin = anchor = 0
    for run in runs:
        if not run.anchored:
            anchor = begin
        anchors.append(anchor if run.anchored else -1)
        begin += len(run.tokens)
    return tuple(anchors)


def count_samples(state: np.ndarray, stream: int, n_streams: int) -> int:
    """Count the samples in a stream's packs: the read ones, every n-th from the stream's own, less the buffered ones.

    Example:
        >>> count_samples(np.array([2, 13, 7, 10, -1]), stream=1, n_streams=3)  # it has read 1, 4, 7, 10
        2
    """
    return int((state[1] - stream) // n_streams - np.count_nonzero(state[2:] >= 0))


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of text of one length; a target is the next token, or IGNORE across documents and if it is not scored.

    Shapes: `tokens` and `targets` int64 (windows, length).
    """

    tokens: IntArray
    targets: IntArray

    def rows(self) -> list[IntArray]:
        """List each window's tokens, followed by the next one if it is a target."""
        lasts = self.targets[:, -1:]
        return [np.concatenate([tokens, last[last != IGNORE]]) for tokens, last in zip(self.tokens, lasts)]


def held_out_windows(data: DataConfig, *, length: int, windows: int, seed: int) -> Windows:
    """Sample windows of joined held-out documents, without overlap.

    Raises: DataError if there are too few.
    """
    store = TokenStore.open(shard_folder(data), "held_out")
    if store.n_tokens // length < windows:
        raise DataError(
            f"--windows={windows}: the held-out documents have {store.n_tokens // length} windows of {length} tokens; "
            "lower it, shorten --length, raise data.held_out_frac, or use --text"
        )
    segments = index_segments(store, "concatenated", length)
    numbers = sample_segments(np.arange(windows), segments.n, seed).tolist()
    tokens, targets, _ = zip(*(read_segment(store, segments.locate(number)) for number in numbers))
    return Windows(np.stack(tokens), np.stack(targets))
