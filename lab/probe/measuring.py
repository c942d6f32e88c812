"""What a probe of a run measures, in the training's process or in one of its own, and the lines that record it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.counts import PositionCounts, SavedCounts
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder
from lab.model.generate import Ended, greedy
from lab.probe.by_distance import found_by_distance
from lab.probe.distance_records import distance_record, reach_record
from lab.probe.effective_distance import DistanceProbe, DistanceResult
from lab.probe.effective_length import LengthResult, NeedleProbe, Row, Worker
from lab.probe.held_out import HeldOutLoss, context_loss
from lab.probe.records import Record, length_record, summary_record, tests_of

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
        *,
        before: Callable[[], None],
    ) -> None:
        self.decoder, self.stop_id, self.context, self.before = decoder, stop_id, context, before

    def generate(self, prompts: Tensor, n_tokens: int, ended: Ended | None = None) -> Tensor:
        """Continue prompts greedily."""
        self.before()
        with self.context():
            return greedy(self.decoder, prompts, n_tokens, self.stop_id, ended=ended)

    def score(self, tokens: Tensor, targets: Tensor, segments: Segments) -> Tensor:
        """Compute each target's loss in one packed row."""
        self.before()
        with torch.no_grad(), self.context():
            losses: Tensor = self.decoder(tokens, segments=segments, targets=targets, summed=False)
        return losses

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute each target's loss in rows of one text each."""
        self.before()
        with torch.no_grad(), self.context():
            losses: Tensor = self.decoder(tokens, targets=targets, summed=False)
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
        about, saved = self.described(consumed), computed(counts)
        lines = [length_record(self.probe, result, about, saved) for result in lengths]
        if self.distances is not None:
            lines += [distance_record(self.distances, result, about, saved) for result in distances]
        summary = {
            **summary_record(self.probe, lengths, about, saved),
            **self.distance_summary(lengths, distances, saved),
            **self.held_out_losses(model, worker),
        }
        cases = [result.cases for result in lengths] + [result.cases for result in distances]
        return Found([*lines, summary], [case for part in cases for case in part])

    def described(self, consumed: int) -> Record:
        """Describe the model after so many tokens."""
        return self.about(torch.device(self.probe.device), consumed)

    def distance_summary(
        self, lengths: Sequence[LengthResult], distances: Sequence[DistanceResult], counts: SavedCounts
    ) -> Record:
        """Summarize the one-number tests, and, at the same distances, the four-needle tests that fit the window."""
        if self.distances is None:
            return {}
        config, probe = self.distances.config, self.distances
        cases = [case for result in lengths if result.length <= probe.test.window for case in result.cases]
        rows = found_by_distance(cases, probe.distances, confidence=config.confidence, seed=probe.test.seed)
        return {**reach_record(distances, config.threshold, counts), "needles_by_distance": rows}

    def held_out_losses(self, model: ModelInTraining, worker: Worker) -> Record:
        """Average the held-out loss over all processes, of all tokens and by visible context; a collective call."""
        if self.loss is None:
            return {}
        sums = torch.stack(worker.gather([self.loss.sums(model.score).cpu()])).sum(0)
        loss, scored = sums.sum(0).tolist()
        return {"held_out_loss": loss / max(scored, 1), "context_loss": context_loss(sums)}

    def numbers(self, found: Found) -> Record:
        """Return what dashboards plot: the summary without what is the same in every probe, and the curves."""
        constants = tests_of(self.probe)
        curve = {f"accuracy_{line['length']}": line["accuracy"] for line in found.lines if "length" in line}
        curve |= {f"found_at_{line['distance']}": line["score"] for line in found.lines if "distance" in line}
        return {**{key: value for key, value in found.summary.items() if key not in constants}, **curve}


def computed(counts: PositionCounts | SavedCounts) -> SavedCounts:
    """Compute f once for all lines of a probe; it is slow under a distance method."""
    return SavedCounts(counts.lengths, counts.frequency(), counts.tokens)
