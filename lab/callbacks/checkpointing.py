"""Saves checkpoints by consumed tokens, when stopped and at the end, each whole or absent."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from lab.callbacks.counting import Counting, crossed
from lab.callbacks.probing import Probing
from lab.callbacks.recording import Recording
from lab.callbacks.stopping import Stopping
from lab.runs import checkpoints
from lab.runs.folder import RunFolder


class Checkpointing(Callback):
    """Stands after the callbacks whose state it saves, and before the probe, which may be interrupted."""

    def __init__(
        self,
        folder: RunFolder,
        counting: Counting,
        stopping: Stopping,
        recording: Recording,
        probing: Probing,
        every_tokens: int | None,
        keep: int,
    ) -> None:
        self.folder, self.counting, self.stopping, self.recording = folder, counting, stopping, recording
        self.probing, self.every_tokens, self.keep = probing, every_tokens, keep
        self.saved_at = 0

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Count intervals from where the run stands."""
        self.saved_at = module.consumed

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when an interval has passed, when stopping, and before a probe, which the last step ends with."""
        if not module.finished:
            return
        due = crossed(self.every_tokens, self.saved_at, module.consumed)
        if due or self.stopping.stopped or self.probing.is_due(trainer, module):
            self.save(trainer, module.consumed)
            self.recording.pause()

    def save(self, trainer: lightning.Trainer, consumed_tokens: int) -> None:
        """Save a checkpoint; a collective call."""
        counts = self.counting.total()
        root = self.folder.checkpoints
        if trainer.is_global_zero:
            checkpoints.temporary_folder(root)
        trainer.strategy.barrier()
        trainer.save_checkpoint(root / ".writing" / checkpoints.STATE)
        if trainer.is_global_zero:
            self.folder.write_counts(counts, root / ".writing" / checkpoints.COUNTS)
            self.folder.write_counts(counts)
            checkpoints.publish(root, consumed_tokens, self.keep)
        trainer.strategy.barrier()
        self.saved_at = consumed_tokens
