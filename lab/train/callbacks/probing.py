"""Probe effective length and held-out loss during training, at intervals of consumed tokens and at the end.

A probe follows the checkpoint of its step. Where the model is sharded, its weights are gathered once, into a whole
copy that lasts as long as the probe, and every rank runs its own tests without waiting for the others. A signal ends
it between two lengths, and nothing of it is recorded; a resumed run finds from the records that a probe is due, and
runs all of it before its first step. A probe that fails on any rank, for whatever reason, is recorded as failed, and
training goes on; --resume at its step runs it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from lab.command import show
from lab.counts import PositionCounts
from lab.model.decoder import Decoder
from lab.model.gathering import allocate, fill
from lab.probe.curve import shown_length
from lab.probe.effective_length import Worker
from lab.probe.measuring import Found, Measuring, ModelInTraining
from lab.train.callbacks.counting import Counting, crossed
from lab.train.callbacks.guarding import Deadline, WorkFailed, describe, exchange, in_step, together
from lab.train.callbacks.recording import Recording, mirror
from lab.train.callbacks.separate import Separate
from lab.train.callbacks.stopping import Stopping
from lab.train.folder import RunFolder

Report = Callable[[str], None]
POLL_S = 0.2  # between two looks at the last processes


class Probing(Callback):
    """Runs the probe between two steps, without torch's random numbers or any change to weights, modes and buffers.

    With `separate` a process of its own runs it on the checkpoint, and only the end of the run waits.
    """

    def __init__(
        self,
        folder: RunFolder,
        counting: Counting,
        recording: Recording,
        stopping: Stopping,
        *,
        make: Callable[[int, int, torch.device], Measuring],
        every_tokens: int | None,
        max_seconds: float | None,
        sharded: bool,
        separate: bool,
    ) -> None:
        self.folder, self.counting, self.recording, self.stopping = folder, counting, recording, stopping
        self.make, self.every_tokens, self.max_seconds, self.sharded = make, every_tokens, max_seconds, sharded
        self.separate = separate
        self.processes: Separate | None = None  # on the first rank
        self.trained = False  # whether the run continues after its last step, where only a probe can be left
        self.probed_at = 0
        self.latest: str | None = None
        self.report: Report = lambda line: None

    @property
    def pending(self) -> list[int]:
        """Consumed tokens of the checkpoints that separate probes still need."""
        return [] if self.processes is None else self.processes.pending

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Set up the probe before the first step, so that faults are reported early, and run an overdue one."""
        self.measuring = self.make(trainer.global_rank, trainer.world_size, module.device)
        last, summary = self.folder.last_probe()
        if self.separate and trainer.is_global_zero:
            self.processes = Separate(self.folder, partial(self.record_outcome, trainer))
            last = max([last, *self.processes.resume(module.consumed)])
        self.probed_at, summary = trainer.strategy.broadcast((last, summary))
        self.show_latest(summary)
        unprobed = self.probed_at < module.consumed
        if (self.trained and unprobed) or crossed(self.every_tokens, self.probed_at, module.consumed):
            self.run(trainer, module)
        if self.trained:
            self.wait(trainer, module)
            trainer.should_stop = True

    def is_due(self, trainer: lightning.Trainer, module: Any) -> bool:
        """Return, after a step, whether a probe follows: an interval has passed, or the step was the last."""
        return trainer.global_step >= trainer.max_steps or crossed(self.every_tokens, self.probed_at, module.consumed)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Probe when it is due, unless the run stops here."""
        if not module.finished or self.stopping.stopped:
            return
        if self.processes is not None:
            self.processes.poll()
        if self.is_due(trainer, module):
            self.run(trainer, module)
        if trainer.global_step >= trainer.max_steps:
            self.wait(trainer, module)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """End what a signal has left; it stays pending."""
        if self.processes is not None:
            self.processes.stop()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """End a process of a run that fails."""
        self.on_train_end(trainer, module)

    def wait(self, trainer: lightning.Trainer, module: Any) -> None:
        """Wait for the separate probes, unless a signal stops the run; a collective call."""
        while self.separate and exchange(self.processes is not None and self.processes.poll())[0]:
            if self.stopping.agree(trainer, module):
                return
            time.sleep(POLL_S)

    def run(self, trainer: lightning.Trainer, module: Any) -> None:
        """Probe and record, also that it failed; a collective call. A signal ends it with nothing recorded."""
        counts = self.counting.total()
        if self.separate:
            self.probed_at = module.consumed
            self.begin(trainer, module.consumed, counts)
            self.recording.pause()
            return
        try:
            found = together(lambda: self.measure(trainer, module, counts))
        except WorkFailed as error:
            self.record_outcome(trainer, module.consumed, str(error))
        else:
            if found is None:
                return
            self.record_outcome(trainer, module.consumed, found, counts)
        self.probed_at = module.consumed
        self.recording.pause()

    def begin(self, trainer: lightning.Trainer, consumed: int, counts: PositionCounts) -> None:
        """Begin a separate probe, or queue it behind those before it."""
        if self.processes is not None:
            try:
                self.folder.write_counts_at(consumed, counts)
                self.processes.add(consumed)
            except Exception as error:  # of any kind, such as a full disk
                self.record_outcome(trainer, consumed, describe(error))

    def measure(self, trainer: lightning.Trainer, module: Any, counts: PositionCounts) -> Found | None:
        """Run this rank's tests and measure its part of the loss; None where a signal ends it."""
        deadline = Deadline("probe.max_seconds", self.max_seconds)
        stop_id, context = self.measuring.probe.stop_id, trainer.precision_plugin.forward_context
        model = ModelInTraining(self.whole(module), stop_id, context, before=deadline.check)
        worker = Worker(trainer.global_rank, trainer.world_size, gather)

        def goes_on(line: str) -> bool:
            self.report(line)
            return not self.stopping.agree(trainer, module)

        return self.measuring.run(model, worker, module.consumed, counts, goes_on)

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

    def record_outcome(
        self, trainer: lightning.Trainer, consumed: int, outcome: Found | str, counts: PositionCounts | None = None
    ) -> None:
        """Write what a probe found, or that it failed and why; also where it cannot be written."""
        if not trainer.is_global_zero:
            return
        if isinstance(outcome, Found):
            try:
                with rolled_back(self.folder.path / "probes.jsonl"):
                    if counts is not None:
                        self.folder.write_counts_at(consumed, counts)
                    self.record(trainer, consumed, outcome)
                return
            except Exception as error:  # of any kind, such as a full disk
                outcome = describe(error)
        show(f"the probe at {consumed:,} tokens failed ({outcome}); training goes on", error=True)
        with suppress(OSError), rolled_back(self.folder.path / "probes.jsonl"):
            self.folder.append("probes.jsonl", {**self.measuring.described(consumed), "failed": outcome})

    def record(self, trainer: lightning.Trainer, consumed: int, found: Found) -> None:
        """Write the curves, the summary and every case."""
        self.folder.write_cases(consumed, found.cases)
        for line in found.lines:
            self.folder.append("probes.jsonl", line)
        self.show_latest(found.summary)
        mirror(trainer, self.measuring.numbers(found), consumed)

    def show_latest(self, summary: dict[str, Any]) -> None:
        """Keep what the last probe found for the progress line; an empty summary means none."""
        if summary:
            self.latest = shown_length(summary["effective_length"], summary.get("first_length"))


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
