"""What a probe of a run measures, and the lines of probes.jsonl that record it: one for each length, then a summary.

The held-out loss is that of text packed as in training, the same packs at every call. It is also summed by visible
context, the c earlier tokens of its document that a token sees besides itself. The gain in loss from context also
distinguishes models that retrieve nothing yet. Bucket 0 is c = 0, bucket b > 0 is 2^(b - 1) <= c < 2^b.

Recall (lab.probe.recall) takes TARGETS held-out targets of each bin from NEAREST_BIN tokens on, the same at every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.core.types import Row
from lab.counts import Counted, PositionCounts, SavedCounts, f_at, visible_context
from lab.data.config import DataConfig
from lab.data.packing import PackSettings, PackStream
from lab.data.preparation import shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.evidence.methods import Evidence
from lab.model.attention.inspection import token_scores
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder
from lab.model.generate import Ended, greedy
from lab.probe.effective_distance import DistanceProbe, map_counts_to_distance
from lab.probe.effective_length import NeedleProbe
from lab.probe.limits import LengthResult
from lab.probe.probe import Probe, Worker
from lab.probe.reach import reach
from lab.probe.recall import NEAREST_BIN, RecallTest, half_octaves

Probed = tuple[list[Row], list[Row]]  # the lines of a probe, of which the last is the summary, and all of its tests
TARGETS = 32  # of a bin, which take 4% of the time of the demo's probe


def reach_record(results: Sequence[LengthResult], threshold: float, counts: Counted | None) -> Row:
    """Return reach with its limits, and f at it."""
    values = reach(results, threshold)
    value = values["reach"]
    return {**values, "f_at_reach": None if value is None else f_at(counts, int(value))}


@dataclass(frozen=True, eq=False)
class ModelInTraining:
    """The model between two steps, as evaluation uses models, in the training's own precision."""

    decoder: Decoder
    stop_id: int | None
    context: Callable[[], AbstractContextManager[object]]

    def generate(self, prompts: Tensor, n_tokens: int, ended: Ended | None = None) -> Tensor:
        with self.context():
            return greedy(self.decoder, prompts, n_tokens, self.stop_id, ended=ended)

    def losses(self, tokens: Tensor, targets: Tensor, segments: Segments | None = None) -> Tensor:
        """Compute each target's loss in rows of one text each, or, with segments, in one packed row."""
        with torch.no_grad(), self.context():
            losses: Tensor = self.decoder(tokens, segments=segments, targets=targets, summed=False)
        return losses

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    def scores(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute each target's loss, and 1 where it is the most likely token, in rows of one text each."""
        with self.context():
            return token_scores(self.decoder, tokens, targets)[:2]


@dataclass(eq=False)
class Measuring:
    """The tests of a run, the held-out loss of each corpus with its weight, and recall, if the settings have them."""

    probe: NeedleProbe
    distances: DistanceProbe | None = None
    losses: Sequence[HeldOutLoss] = ()
    recall: RecallTest | None = None
    weights: Sequence[float] = (1.0,)

    def run(
        self,
        model: ModelInTraining,
        worker: Worker,
        origin: Row,
        counts: PositionCounts,
        goes_on: Callable[[str], bool],
    ) -> Probed | None:
        """Run this process's tests and measure its part of the loss; a collective call.

        `origin` describes the model. `goes_on` receives a line after every length and distance; where it returns false,
        the probe ends with None.
        """
        results: dict[str, list[LengthResult]] = {"length": [], "distance": []}
        cases: list[Row] = []
        probes: tuple[Probe[Any] | None, ...] = (self.probe, self.distances)
        for probe in filter(None, probes):
            for result in probe.run(model, worker):
                results[probe.by].append(result)
                cases += result.cases
                if not goes_on(f"probing: {probe.by} {result.length} {result.accuracy:.2f}"):
                    return None
        lengths, distances = results.values()
        # Lines read f one value at a time, and a counter computes all of f at every call.
        saved = SavedCounts(counts.lengths, counts.frequency(), counts.tokens)
        lines = [self.probe.record(result, origin, saved) for result in lengths]
        summary = self.probe.summarize(lengths, origin, saved)
        if self.distances is not None:
            counts_by_distance = map_counts_to_distance(saved, model.decoder.distance, self.distances.prompt_tokens)
            lines += [self.distances.record(result, origin, counts_by_distance) for result in distances]
            summary |= reach_record(distances, self.distances.config.threshold, counts_by_distance)
        if self.losses:
            parts = worker.gather([loss.sums(model.losses).cpu() for loss in self.losses])
            # of each corpus, over the ranks
            sums = torch.stack(parts).unflatten(0, (-1, len(self.losses))).sum(0)
            nats, scored = sums.sum(1).T
            means = nats / scored.clamp(min=1)
            summary["held_out_loss"] = np.average(means, weights=self.weights).item()
            summary["context_loss"] = context_loss(sums[0])
            n_bytes = self.losses[0].n_bytes
            summary["bits_per_byte"] = None if n_bytes is None else nats[0].item() / math.log(2) / max(n_bytes, 1)
            if len(means) > 1:
                summary["held_out_losses"] = means.tolist()
        if self.recall is not None:
            # Ranks take every n-th target, so that each has targets of all bins; the rows return to their order.
            parts = worker.gather([self.recall.scores(model, self.recall.targets[worker.rank :: worker.world_size])])
            scores = np.zeros((len(self.recall.targets), parts[0].shape[1]))
            for rank, part in enumerate(parts):
                scores[rank :: worker.world_size] = part
            summary["recall"] = self.recall.summarize(scores)
        return [*lines, summary], cases


class HeldOutLoss:
    """Reads the first packs of the held-out split once and scores each rank's part of them."""

    def __init__(
        self, data: DataConfig, *, tokens: int, pack_tokens: int, rank: int, world_size: int, device: torch.device | str
    ) -> None:
        store = TokenStore.open(shard_folder(data), "held_out")
        settings = PackSettings(
            store=store,
            segments=index_segments(store, "natural", data.window),
            pack_tokens=pack_tokens,
            seed=0,
            look_ahead=data.look_ahead,
            bytes=store.bytes,
        )
        packs = list(islice(PackStream(settings), max(1, min(tokens, store.n_tokens) // pack_tokens)))
        # Of the scored tokens of all ranks, in the original text: decoded text may have other bytes.
        self.n_bytes: int | None = None
        if store.bytes is not None:
            self.n_bytes = 0
            for pack in packs:
                assert pack.n_bytes is not None, "the shards have bytes"
                self.n_bytes += int(pack.n_bytes[pack.targets >= 0].sum())
        self.packs = packs[rank::world_size]
        self.device = device
        self.buckets = data.window.bit_length() + 1

    def sums(self, model: Callable[[Tensor, Tensor, Segments], Tensor]) -> Tensor:
        """Sum the loss in nats and the scored tokens of each bucket over this rank's packs: float64 (buckets, 2)."""
        total = torch.zeros(self.buckets, 2, dtype=torch.float64, device=self.device)
        for pack in self.packs:
            tokens, targets = (torch.from_numpy(part)[None].to(self.device) for part in (pack.tokens, pack.targets))
            segments = Segments.from_lengths(pack.lengths, len(pack.tokens), self.device)
            losses = model(tokens, targets, segments)[0].double()
            # Padding keeps 0 earlier tokens. It has no loss and no target, so that its bucket gains nothing.
            earlier = np.pad(visible_context(pack.lengths), (0, len(losses) - sum(pack.lengths)))
            # frexp writes c as m * 2^e with m in [0.5, 1), so that the exponent of an integer is its bit length
            bucket = torch.from_numpy(np.frexp(earlier)[1].astype(np.int64))
            total.index_add_(0, bucket.to(self.device), torch.stack([losses, targets[0] >= 0], 1))
        return total


def held_out_recall(data: DataConfig, evidence: Evidence, device: torch.device | str) -> RecallTest:
    """Sample the targets of a run's probes from the first of its held-out documents, 2^20 tokens in all."""
    store = TokenStore.open(shard_folder(data), "held_out")
    tokens = store.read(0, 2**20).astype(np.int64)
    documents = np.split(tokens, np.flatnonzero(np.diff(store.document_numbers(0, len(tokens)))) + 1)
    return RecallTest(documents, evidence, data.window, half_octaves(data.window, NEAREST_BIN), TARGETS, device=device)


def context_loss(sums: Tensor) -> dict[str, float]:
    """Average each bucket's loss, by the fewest earlier tokens in it; buckets without a token are omitted."""
    return {str(1 << k >> 1): loss / scored for k, (loss, scored) in enumerate(sums.tolist()) if scored}
