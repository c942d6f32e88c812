"""Probe effective length and held-out loss during training, at intervals of consumed tokens and at the end.

A probe follows the checkpoint of its step. Where the model is sharded, its weights are gathered once, into a whole
copy that lasts as long as the probe, and every rank runs its own tests without waiting for the others. A signal ends
it between two lengths, and nothing of it is recorded; a resumed run finds from the records that a probe is due, and
runs all of it before its first step. A probe that fails on any rank, for whatever reason, is recorded as failed, and
training goes on; --resume at its step runs it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lab.callbacks.counting import Counting, crossed
from lab.callbacks.guarding import Deadline, WorkFailed, describe, exchange, in_step, together
from lab.callbacks.recording import Recording, mirror
from lab.callbacks.stopping import Stopping
from lab.command import show
from lab.counts import PositionCounts, SavedCounts
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder
from lab.model.gathering import allocate, fill
from lab.model.generation.generate import Ended, greedy
from lab.probe.by_distance import found_by_distance
from lab.probe.curve import shown_length
from lab.probe.distance_records import distance_record, reach_record
from lab.probe.effective_distance import DistanceProbe, DistanceResult
from lab.probe.effective_length import LengthResult, NeedleProbe, Worker
from lab.probe.held_out import HeldOutLoss, context_loss
from lab.probe.records import length_record, summary_record, tests_of
from lab.runs.folder import RunFolder

Report = Callable[[str], None]


class Found(NamedTuple):
    """What a probe has measured: its tests by length and by distance, its summary, and the counts it quotes."""

    lengths: list[LengthResult]
    distances: list[DistanceResult]
    summary: dict[str, Any]
    counts: SavedCounts


class Probing(Callback):
    """Runs the probe between two steps, without torch's random numbers or any change to weights, modes and buffers."""

    def __init__(
        self,
        folder: RunFolder,
        counting: Counting,
        recording: Recording,
        stopping: Stopping,
        *,
        make_probe: Callable[[torch.device], NeedleProbe],
        make_loss: Callable[[int, int, torch.device], HeldOutLoss | None],
        about: Callable[[torch.device, int], dict[str, Any]],
        every_tokens: int | None,
        max_seconds: float | None,
        sharded: bool,
    ) -> None:
        self.folder, self.counting, self.recording, self.stopping = folder, counting, recording, stopping
        self.make_probe, self.make_loss, self.about = make_probe, make_loss, about
        self.every_tokens, self.max_seconds, self.sharded = every_tokens, max_seconds, sharded
        self.trained = False  # whether the run continues after its last step, where only a probe can be left
        self.probed_at = 0
        self.latest: str | None = None
        self.report: Report = lambda line: None

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Set up the probe before the first step, so that faults are reported early, and run an overdue one."""
        self.probe = self.make_probe(module.device)
        self.distances = DistanceProbe.beside(self.probe)
        self.loss = self.make_loss(trainer.global_rank, trainer.world_size, module.device)
        self.remember(*trainer.strategy.broadcast(self.folder.last_probe()))
        unprobed = self.probed_at < module.consumed
        if (self.trained and unprobed) or crossed(self.every_tokens, self.probed_at, module.consumed):
            self.run(trainer, module)
        if self.trained:
            trainer.should_stop = True

    def is_due(self, trainer: lightning.Trainer, module: Any) -> bool:
        """Return, after a step, whether a probe follows: an interval has passed, or the step was the last."""
        return trainer.global_step >= trainer.max_steps or crossed(self.every_tokens, self.probed_at, module.consumed)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Probe when it is due, unless the run stops here."""
        if module.finished and self.is_due(trainer, module) and not self.stopping.stopped:
            self.run(trainer, module)

    def run(self, trainer: lightning.Trainer, module: Any) -> None:
        """Probe and record, also that it failed; a collective call. A signal ends it with nothing recorded."""
        counts = self.counting.total()
        try:
            found = together(lambda: self.measure(trainer, module, counts))
        except WorkFailed as error:
            self.remember(module.consumed, {})
            self.record_failure(trainer, module, str(error))
        else:
            if found is None:
                return
            self.remember(module.consumed, found.summary)
            if trainer.is_global_zero:
                try:
                    with rolled_back(self.folder.path / "probes.jsonl"):
                        self.folder.write_counts_at(module.consumed, counts)
                        self.record(trainer, *found)
                except Exception as error:  # of any kind, such as a full disk
                    self.record_failure(trainer, module, describe(error))
        self.recording.pause()

    def measure(self, trainer: lightning.Trainer, module: Any, counts: PositionCounts) -> Found | None:
        """Run this rank's tests and measure its part of the loss; None where a signal ends it."""
        deadline = Deadline("probe.max_seconds", self.max_seconds)
        context = trainer.precision_plugin.forward_context
        model = ModelInTraining(self.whole(module), self.probe.stop_id, context, before=deadline.check)
        worker = Worker(trainer.global_rank, trainer.world_size, gather)
        lengths: list[LengthResult] = []
        for result in self.probe.run(model.generate, worker):
            lengths.append(result)
            self.report(f"probing: {result.length} tokens {result.accuracy:.2f}")
            if self.stopping.agree(trainer, module):
                return None
        distances: list[DistanceResult] = []
        for found in self.distances.run(model, worker) if self.distances else ():
            distances.append(found)
            self.report(f"probing: distance {found.distance} {found.accuracy:.2f}")
            if self.stopping.agree(trainer, module):
                return None
        saved = computed(counts)
        summary = {
            **summary_record(self.probe, lengths, self.about(self.probe.device, module.consumed), saved),
            **self.distance_summary(lengths, distances, saved),
        }
        if self.loss is not None:
            summary |= self.held_out_losses(model)
        return Found(lengths, distances, summary, saved)

    def whole(self, module: Any) -> Decoder:
        """Return the model, or a whole copy where it is sharded; a collective call.

        Raises: WorkFailed where a rank has no room for the copy, before any of them gathers.
        """
        decoder: Decoder = module.decoder
        if not self.sharded:
            return decoder
        copy = allocate(module.make_decoder, module.sharding.dtype, module.device)
        exchange(None)
        with in_step():
            fill(copy, decoder)
        return copy

    def record_failure(self, trainer: lightning.Trainer, module: Any, reason: str) -> None:
        """Write that a probe failed, and why, on stderr and as a line of probes.jsonl where the disk lets it."""
        if trainer.is_global_zero:
            consumed = module.consumed
            show(f"the probe at {consumed:,} tokens failed ({reason}); training goes on", error=True)
            with suppress(OSError), rolled_back(self.folder.path / "probes.jsonl"):
                line = {**self.about(self.probe.device, consumed), "failed": reason}
                self.folder.append("probes.jsonl", line)

    def remember(self, consumed: int, summary: dict[str, Any]) -> None:
        """Record when the last probe ran and what it found; an empty summary means none."""
        self.probed_at = consumed
        if summary:
            self.latest = shown_length(summary["effective_length"], summary.get("first_length"))

    def distance_summary(
        self, lengths: list[LengthResult], distances: list[DistanceResult], counts: SavedCounts
    ) -> dict[str, Any]:
        """Summarize the one-number tests, and, at the same distances, the four-needle tests that fit the window."""
        if self.distances is None:
            return {}
        config, probe = self.distances.config, self.distances
        cases = [case for result in lengths if result.length <= probe.test.window for case in result.cases]
        rows = found_by_distance(cases, probe.distances, confidence=config.confidence, seed=probe.test.seed)
        return {
            **reach_record(distances, config.threshold, counts),
            "needles_by_distance": rows,
        }

    def record(
        self,
        trainer: lightning.Trainer,
        lengths: list[LengthResult],
        distances: list[DistanceResult],
        summary: dict[str, Any],
        counts: SavedCounts,
    ) -> None:
        """Write the curves, the summary and every case."""
        consumed = summary["consumed_tokens"]
        self.folder.write_cases(consumed, [case for result in (*lengths, *distances) for case in result.cases])
        about = self.about(self.probe.device, consumed)
        lines = [length_record(self.probe, result, about, counts) for result in lengths]
        if self.distances is not None:
            lines += [distance_record(self.distances, result, about, counts) for result in distances]
        for line in (*lines, summary):
            self.folder.append("probes.jsonl", line)
        curve = {f"accuracy_{result.length}": result.accuracy for result in lengths}
        curve |= {f"found_at_{result.distance}": result.accuracy for result in distances}
        constants = tests_of(self.probe)
        mirror(trainer, {**{k: v for k, v in summary.items() if k not in constants}, **curve}, consumed)

    def held_out_losses(self, model: ModelInTraining) -> dict[str, Any]:
        """Average the held-out loss over all ranks, of all tokens and by visible context; a collective call."""
        assert self.loss is not None, "called only if held-out loss is measured"
        sums = torch.stack(exchange(self.loss.sums(model.score).cpu())).sum(0)
        loss, scored = sums.sum(0).tolist()
        return {"held_out_loss": loss / max(scored, 1), "context_loss": context_loss(sums)}


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


def computed(counts: PositionCounts) -> SavedCounts:
    """Compute f once for all lines of a probe; it is slow under a distance method."""
    return SavedCounts(counts.lengths, counts.frequency(), counts.tokens)


def gather(rows: list[Any]) -> list[Any]:
    """Join the rows of all ranks; a collective call."""
    return [row for part in exchange(rows) for row in part]


@contextmanager
def rolled_back(path: Path) -> Iterator[None]:
    """Cut a file to its former size where appending to it fails."""
    size = path.stat().st_size if path.exists() else 0
    try:
        yield
    except Exception:
        if path.exists():
            os.truncate(path, size)
        raise
