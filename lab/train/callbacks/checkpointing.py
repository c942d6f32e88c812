"""Saves checkpoints by consumed tokens, when stopped and at the end, each whole or absent; restores one at the start.

A background save writes a copy of the tensors while the run trains; there is one at a time, and the next save, a stop
and the end wait for it.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

import lightning
from lightning.pytorch.callbacks import Callback
from torch import distributed

from lab.train import checkpoints
from lab.train.callbacks.counting import Counting, crossed
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.recording import Recording
from lab.train.callbacks.resuming import collect, reopen, restore
from lab.train.callbacks.stopping import Stopping
from lab.train.folder import RunFolder, packed_counts
from lab.train.shards import Files, ShardWriter, finish_writing, write_shards
from lab.train.state import packed


class Saves(NamedTuple):
    """How often a run saves, in consumed tokens, how many checkpoints it keeps, whether it trains during a save.

    Those after `final_steps` are kept beyond that number.
    """

    every_tokens: int | None
    keep: int
    background: bool
    final_steps: tuple[int, ...]


class Checkpointing(Callback):
    """Runs after the callbacks whose state it saves, and before the probe, which may be interrupted.

    `start` is the checkpoint to continue at; only the first rank's value is used.
    """

    def __init__(
        self,
        folder: RunFolder,
        counting: Counting,
        stopping: Stopping,
        recording: Recording,
        probing: Probing,
        saves: Saves,
        start: checkpoints.Checkpoint | None,
    ) -> None:
        self.folder, self.counting, self.stopping, self.recording = folder, counting, stopping, recording
        self.probing, self.saves, self.start = probing, saves, start
        self.saved_at = 0
        self.final: dict[int, int] = {}  # consumed tokens of the checkpoints of final_steps
        self.group: distributed.ProcessGroup | None = None
        self.writing: Future[Any] | None = None

    def on_fit_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Restore the checkpoint that the first rank found."""
        if distributed.is_available() and distributed.is_initialized():
            self.group = distributed.new_group(backend="gloo")  # a save in the background must not meet the training
        start = trainer.strategy.broadcast(self.start)
        if start is None:
            return
        restore(trainer, module, start, self.group)
        if trainer.global_step >= trainer.max_steps:
            self.probing.trained = True
            reopen(trainer)

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Count intervals from the current number of tokens."""
        self.saved_at = module.consumed

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when an interval has passed, on a signal, and before a probe, which the last step ends with."""
        if not module.finished or self.stopping.fault:
            return
        due = crossed(self.saves.every_tokens, self.saved_at, module.consumed)
        if trainer.global_step in self.saves.final_steps:
            due, self.final[trainer.global_step] = True, module.consumed
        ends = self.stopping.stopped or trainer.global_step >= trainer.max_steps
        probed = self.probing.is_due(trainer, module)
        if due or ends or probed:
            self.save(trainer, module, background=self.saves.background and not (ends or probed))
            self.recording.pause()

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Wait for what is still being written, and delete what separate probes have held."""
        self.finish()
        if self.probing.processes is not None:
            final = tuple(self.final.values())
            checkpoints.prune(self.folder.checkpoints, self.saved_at, self.saves.keep, final, self.probing.pending)

    def save(self, trainer: lightning.Trainer, module: Any, *, background: bool) -> None:
        """Save a checkpoint; a collective call.

        Raises: CheckpointError where this one, or the one before, cannot be written.
        """
        self.finish()
        root, consumed, final = self.folder.checkpoints, module.consumed, tuple(self.final.values())
        counts = self.counting.total()
        tensors, state = collect(trainer, module)

        def publish(files: Files) -> None:
            self.folder.write_counts(counts)
            checkpoints.publish(root, consumed, self.saves.keep, files, final, self.probing.pending)

        small = {checkpoints.STATE: packed(state), checkpoints.COUNTS: packed_counts(counts)}
        writer = ShardWriter(root, consumed, small, publish)
        self.writing = write_shards(tensors, writer, self.group, background=background)
        self.saved_at = consumed

    def state_dict(self) -> dict[str, Any]:
        """Return which checkpoints are final ones."""
        return {"final": dict(self.final)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the final ones of the steps that are still the last."""
        self.final = {step: at for step, at in state_dict["final"].items() if step in self.saves.final_steps}

    def finish(self) -> None:
        """Wait for a save in the background.

        Raises: CheckpointError where it could not be written.
        """
        writing, self.writing = self.writing, None
        if writing is not None:
            finish_writing(writing, self.folder.checkpoints)
