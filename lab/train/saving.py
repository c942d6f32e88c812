"""Saves checkpoints by consumed tokens, when stopped and at the end, each whole or absent; restores one at the start.

A background save writes a copy of the tensors while the run trains. There is one at a time: the next save, a stop and
the end wait for it. One that fails ends the run at the next step, or between two lengths of a probe.

A run stops on a signal, after the death of torchrun, or where a loss or gradient is not finite. On a signal the current
step or length is finished and a checkpoint saved; the exit status is 75. A step that is not finite updates nothing:
nothing is saved either, and the exit status is 1. A second Ctrl-C ends the process at once. Other signals do not:
launchers and clusters repeat them, and a repeated signal must not kill a run that is already saving.
"""

import math
import os
import re
import signal
import threading
import time
import traceback
from concurrent.futures import Future
from functools import partial
from typing import Any

import lightning
from torch import distributed

from lab.command import FAILED, show
from lab.errors import CheckpointError, LabError
from lab.launch import COPY_S, SIGNALS, Launch, OutOfStep, exchange
from lab.model.sharding import reshard
from lab.runs import checkpoints, shards
from lab.runs.folder import RECORDS, packed_counts, seal
from lab.runs.shards import Files, ShardWriter, one_error, packed, restore_tensors, tensors_to_save, write_shards
from lab.train.recording import Recording
from lab.train.starting import Start

LOST = re.compile("peer|timed out|remote", re.IGNORECASE)  # in the errors of gloo and NCCL


def crossed(every_tokens: int | None, before: int, now: int) -> bool:
    """Return whether a multiple of `every_tokens` lies between two numbers of consumed tokens.

    Example:
        >>> crossed(100, before=90, now=105), crossed(100, before=105, now=190), crossed(None, before=0, now=500)
        (True, False, False)
    """
    return every_tokens is not None and now // every_tokens > before // every_tokens


def describe(error: BaseException) -> str:
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


class Stopping(lightning.Callback):
    """Turns signals into a stop that all ranks agree on, after a step or between two lengths of a probe."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.stopped = False
        self.fault: str | None = None  # why the run cannot go on
        self.asked_at: float | None = None
        self.module: Any = None
        self.begun: threading.Event | None = None  # set once there is something to save

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Take SIGTERM from the moment on at which Lightning would, which is before the handlers are installed."""
        self.module = module
        # Lightning's own broadcasts to all ranks within the handler, and meets whatever else they are exchanging.
        # Another broadcast, for which the host waits, asks before every pack; here the sums of the step tell.
        trainer._signal_connector._sigterm_notifier_fn = self.ask  # type: ignore[assignment,method-assign]
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Install the handlers after Lightning has installed its own; it restores the original ones at the end."""
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.ask)

    def ask(self, number: int, frame: Any) -> None:
        """Note a signal, by which all ranks stop after the step; a second Ctrl-C ends the process."""
        now = time.monotonic()
        if number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > COPY_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked_at = self.asked_at or now
        self.module.stop_asked = True

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        """End the loop once all ranks know, which they do from the step's sums."""
        if not module.finished:
            return
        if self.begun is not None:
            self.begun.set()
        if module.finished.skipped:
            what = "gradient" if math.isfinite(module.finished.sums["loss"]) else "loss"
            remedy = "start another run with a lower optim.lr, or resume from the last checkpoint on another machine"
            place = f"step {trainer.global_step}, which ends at {module.consumed:,} tokens"
            self.fault = f"optim.lr={module.optim.lr}: {place}, has a {what} that is not finite; {remedy}"
        if self.fault or module.finished.sums["stop"]:
            self.stop(trainer)

    def agree(self, trainer: lightning.Trainer, module: Any) -> bool:
        """End the loop if any rank received a signal, and return whether one did; a collective call."""
        if any(exchange(module.stop_asked)):
            self.stop(trainer)
        return self.stopped

    def stop(self, trainer: lightning.Trainer) -> None:
        self.stopped = trainer.should_stop = True

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """End a rank that fails at once, so that torchrun ends the others: its teardown would wait for them."""
        if self.launch.world_size > 1 and isinstance(exception, Exception) and not isinstance(exception, LabError):
            if isinstance(exception, OutOfStep) or LOST.search(str(exception)):
                show(f"rank {self.launch.rank} (process {os.getpid()}) failed ({describe(exception)})", error=True)
            else:
                traceback.print_exception(exception)
            os._exit(FAILED)

    def ignore(self) -> None:
        """Ignore signals once all is saved, while the run reports and the process exits."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def stop_on_failure(module: Any, writing: Future[Any]) -> None:
    """Ask all ranks to stop, as a signal does, if a save has failed; `finish` raises its error on each of them."""
    if writing.exception() is not None:
        module.stop_asked = True


class Checkpointing(lightning.Callback):
    """Runs after the callbacks whose state it saves, and before the probe, which saves what is not saved yet."""

    def __init__(self, start: Start, recording: Recording, stopping: Stopping) -> None:
        self.start = start
        self.config = start.experiment.train
        self.folder = start.folder
        self.recording = recording
        self.stopping = stopping
        self.trained = False  # whether the run continues after its last step, where only a probe can be left
        self.saved_at = 0
        self.final: dict[int, int] = {}  # consumed tokens of the checkpoints of final_steps
        self.run = ""  # its digest, on the first rank
        self.group: distributed.ProcessGroup | None = None
        self.writing: Future[Any] | None = None

    def on_fit_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Restore the checkpoint that the run starts from.

        Raises: CheckpointError.
        """
        if trainer.is_global_zero:
            self.run = checkpoints.read_manifest(self.folder.path)[0]
        if distributed.is_available() and distributed.is_initialized():
            self.group = distributed.new_group(backend="gloo")  # a save in the background must not meet the training
        if self.start.checkpoint is not None:
            self.restore(trainer, module, self.start.checkpoint)
        self.saved_at = module.consumed

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        """Save when an interval has passed, and on a signal."""
        if not module.finished or self.stopping.fault:
            return
        is_final = trainer.global_step in self.config.final_steps
        if is_final:
            self.final[trainer.global_step] = module.consumed
        due = is_final or crossed(self.config.checkpoint_every_tokens, self.saved_at, module.consumed)
        if due or self.stopping.stopped:
            self.save(trainer, module, background=self.config.async_checkpoints and not self.stopping.stopped)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        self.finish()

    def save(self, trainer: lightning.Trainer, module: Any, *, background: bool = False) -> None:
        """Save a checkpoint of this step, unless it has one; a collective call.

        Raises: CheckpointError where this one, or the one before, cannot be written, or the parts do not agree.
        """
        if self.saved_at == module.consumed:
            return  # it may still be written: a probe need not wait for it
        self.finish()
        root = self.folder.checkpoints
        consumed = module.consumed
        counting = self.recording.counting
        counts = counting.total()
        reshard(module.decoder)
        tensors, rest = tensors_to_save(module.decoder, trainer.optimizers[0])
        final = dict(self.final)
        state = rest | {
            "step": trainer.global_step,
            "consumed_tokens": consumed,
            "skipped_steps": module.skipped_steps,
            "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            "data": trainer.datamodule.state_dict(),  # type: ignore[attr-defined]
            "recording": {"counts": counts.to_dict() | counting.selected(), "sums": self.recording.sums},
            "final": final,
        }
        try:
            checkpoints.check(state)
        except ValueError as error:
            place = root / checkpoints.folder_name(consumed)
            raise CheckpointError(f"{place}: not saved ({error}); resume from the checkpoint before it") from error

        # The records are on the disk before the checkpoint that continues them, or a loss of power could part the two.
        records = seal(self.folder.path, RECORDS) if trainer.is_global_zero else {}

        def publish(files: Files) -> None:
            keep = self.config.keep_checkpoints
            shards.publish(root, consumed, keep, self.run, files, tuple(final.values()), records)
            self.folder.write_counts(counts)

        small = {checkpoints.STATE: packed(state), checkpoints.COUNTS: packed_counts(counts)}
        writer = ShardWriter(root, small, publish)
        self.writing = write_shards(tensors, writer, self.group, background=background)
        if self.writing is not None:
            self.writing.add_done_callback(partial(stop_on_failure, module))
        self.saved_at = consumed
        self.recording.pause()

    def restore(self, trainer: lightning.Trainer, module: Any, checkpoint: checkpoints.Checkpoint) -> None:
        """Continue at a checkpoint, under any number of processes; before any batch. A collective call.

        Raises: CheckpointError.
        """
        state = checkpoints.read_state(checkpoint)
        optimizer = trainer.optimizers[0]
        schedule = trainer.lr_scheduler_configs[0].scheduler
        restore_tensors(module.decoder, optimizer, checkpoint, state, self.group)
        module.consumed = state["consumed_tokens"]
        module.skipped_steps = state["skipped_steps"]
        schedule.load_state_dict(dict(state["schedule"]))
        for param_group, lr in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            param_group["lr"] = lr
        trainer.datamodule.load_state_dict(state["data"])  # type: ignore[attr-defined]
        self.recording.counting.load_state_dict(dict(state["recording"]["counts"]))
        self.recording.sums = state["recording"]["sums"]
        self.final = {step: at for step, at in state["final"].items() if step in self.config.final_steps}
        # Lightning's own counters: batches count from zero again, as a checkpoint is saved between two steps, so that
        # the next step begins with the next batch whatever the number of batches in a step now.
        loop = trainer.fit_loop.epoch_loop
        done = loop.automatic_optimization.optim_progress.optimizer.step.total
        done.ready = done.completed = state["step"]
        if trainer.global_step >= trainer.max_steps:
            self.trained = True
            loop.max_steps += 1  # Lightning calls no hook where no step is left

    def finish(self) -> None:
        """Wait for a save in the background.

        Raises: CheckpointError where it could not be written.
        """
        if self.writing is not None:
            with one_error(f"{self.folder.checkpoints}: no checkpoint could be written"):
                self.writing.result()
            self.writing = None
