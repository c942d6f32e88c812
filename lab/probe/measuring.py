"""What a probe of a run measures, in the training's process or in one of its own, and the lines that record it.

The held-out loss is that of text packed as in training, the same packs at every call. It is also summed by visible
context, the c earlier tokens of its document that a token sees beside itself: the gain in loss from context tells
models apart that find nothing yet. Bucket 0 is c = 0, bucket b > 0 is 2^(b - 1) <= c < 2^b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.counts import PositionCounts, SavedCounts, visible_context
from lab.data.config import DataConfig
from lab.data.packing import PackSettings, PackStream
from lab.data.preparation import shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder
from lab.model.generate import Ended, greedy
from lab.probe.curve import LengthResult
from lab.probe.effective_distance import DistanceProbe, DistanceResult
from lab.probe.effective_length import NeedleProbe, Row, Worker
from lab.probe.records import (
    Record,
    distance_record,
    found_by_distance,
    length_record,
    reach_record,
    summary_record,
    tests_of,
)

About = Callable[[torch.device, int], Record]
GoesOn = Callable[[str], bool]


class Found(NamedTuple):
    """What a probe has found: its lines, of which the last is the summary, and all of its tests."""

    lines: list[Record]
    cases: list[Row]

    @property
    def summary(self) -> Record:
        """The summary of the whole."""
        return self.lines[-1]


class ModelInTraining:
    """The model between two steps, as evaluation uses models, in the training's own precision."""

    def __init__(
        self,
        decoder: Decoder,
        stop_id: int | None,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.decoder, self.stop_id, self.context = decoder, stop_id, context

    def generate(self, prompts: Tensor, n_tokens: int, ended: Ended | None = None) -> Tensor:
        """Continue prompts greedily."""
        with self.context():
            return greedy(self.decoder, prompts, n_tokens, self.stop_id, ended=ended)

    def losses(self, tokens: Tensor, targets: Tensor, segments: Segments | None = None) -> Tensor:
        """Compute each target's loss in rows of one text each, or, with segments, in one packed row."""
        with torch.no_grad(), self.context():
            losses: Tensor = self.decoder(tokens, segments=segments, targets=targets, summed=False)
        return losses


class Measuring:
    """The tests of a run and its held-out loss, None where none is asked for; `about` describes what was probed."""

    def __init__(self, probe: NeedleProbe, loss: HeldOutLoss | None, about: About) -> None:
        self.probe, self.loss, self.about = probe, loss, about
        self.distances = DistanceProbe.beside(probe)

    def run(
        self,
        model: ModelInTraining,
        worker: Worker,
        consumed: int,
        counts: PositionCounts | SavedCounts,
        goes_on: GoesOn,
    ) -> Found | None:
        """Run this process's tests and measure its part of the loss; a collective call.

        `goes_on` receives a line after every length and distance; where it returns false, the probe ends with None.
        """
        lengths: list[LengthResult] = []
        for result in self.probe.run(model.generate, worker):
            lengths.append(result)
            if not goes_on(f"probing: {result.length} tokens {result.accuracy:.2f}"):
                return None
        distances: list[DistanceResult] = []
        for found in self.distances.run(model, worker) if self.distances else ():
            distances.append(found)
            if not goes_on(f"probing: distance {found.distance} {found.accuracy:.2f}"):
                return None
        about = self.described(consumed)
        saved = SavedCounts(counts.lengths, counts.frequency(), counts.tokens)  # f is slow under a method
        lines = [length_record(self.probe, result, about, saved) for result in lengths]
        if self.distances is not None:
            lines += [distance_record(self.distances, result, about, saved) for result in distances]
        summary = summary_record(self.probe, lengths, about, saved)
        if self.distances is not None:  # the four-needle tests that fit the window are read at the same distances
            config, test = self.distances.config, self.distances.test
            fitting = [case for result in lengths if result.length <= test.window for case in result.cases]
            summary |= reach_record(distances, config.threshold, saved)
            summary["needles_by_distance"] = found_by_distance(
                fitting, self.distances.distances, confidence=config.confidence, seed=test.seed
            )
        if self.loss is not None:
            sums = torch.stack(worker.gather([self.loss.sums(model.losses).cpu()])).sum(0)
            loss, scored = sums.sum(0).tolist()
            summary |= {"held_out_loss": loss / max(scored, 1), "context_loss": context_loss(sums)}
        cases = [result.cases for result in lengths] + [result.cases for result in distances]
        return Found([*lines, summary], [case for part in cases for case in part])

    def described(self, consumed: int) -> Record:
        """Describe the model after so many tokens."""
        return self.about(torch.device(self.probe.device), consumed)

    def numbers(self, found: Found) -> Record:
        """Return what dashboards plot: the summary without what is the same in every probe, and the curves."""
        constants = tests_of(self.probe)
        curve = {f"accuracy_{line['length']}": line["accuracy"] for line in found.lines if "length" in line}
        curve |= {f"found_at_{line['distance']}": line["score"] for line in found.lines if "distance" in line}
        return {**{key: value for key, value in found.summary.items() if key not in constants}, **curve}


class HeldOutLoss:
    """Draws the first packs of the held-out split once and scores each rank's part of them."""

    def __init__(
        self, data: DataConfig, *, tokens: int, pack_tokens: int, rank: int, world_size: int, device: torch.device | str
    ) -> None:
        store = TokenStore.open(shard_folder(data), "held_out")
        segments = index_segments(store, "natural", data.window)
        n_packs = max(1, min(tokens, store.n_tokens) // pack_tokens)
        stream = PackStream(
            PackSettings(store=store, segments=segments, pack_tokens=pack_tokens, seed=0, look_ahead=data.look_ahead)
        )
        packs = [next(stream) for _ in range(n_packs)]
        self.packs = packs[rank::world_size]
        self.device, self.buckets = device, data.window.bit_length() + 1

    def sums(self, model: Callable[[Tensor, Tensor, Segments], Tensor]) -> Tensor:
        """Sum the loss in nats and the scored tokens of each bucket over this rank's packs: float64 (buckets, 2)."""
        total = torch.zeros(self.buckets, 2, dtype=torch.float64, device=self.device)
        for pack in self.packs:
            tokens, targets = (torch.from_numpy(x)[None].to(self.device) for x in (pack.tokens, pack.targets))
            segments = Segments.from_lengths(pack.lengths, len(pack.tokens), self.device)
            losses = model(tokens, targets, segments)[0].double()
            sums = torch.stack([losses, (targets[0] >= 0).double()], 1)
            total.index_add_(0, bucket_of(pack.lengths, len(losses)).to(self.device), sums)
        return total


def bucket_of(lengths: Sequence[int], n_tokens: int) -> Tensor:
    """Return the bucket of every token of a packed row, int64 (n_tokens,); padding is in bucket 0, and not scored.

    Example:
        >>> bucket_of([6, 2], 9)
        tensor([0, 1, 2, 2, 3, 3, 0, 1, 0])
    """
    earlier = np.zeros(n_tokens, dtype=np.int64)
    earlier[: sum(lengths)] = visible_context(lengths)
    return torch.from_numpy(np.frexp(earlier)[1].astype(np.int64))  # the exponent is the bit length


def context_loss(sums: Tensor) -> dict[str, float]:
    """Average each bucket's loss, by the fewest earlier tokens in it; buckets without a token are left out.

    Example:
        >>> context_loss(torch.tensor([[6.0, 2.0], [0.0, 0.0], [9.0, 4.0], [2.0, 1.0]]))
        {'0': 3.0, '2': 2.25, '4': 2.0}
    """
    rows = enumerate(sums.tolist())
    return {str(1 << bucket >> 1): loss / scored for bucket, (loss, scored) in rows if scored}
