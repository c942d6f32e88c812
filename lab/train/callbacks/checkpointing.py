"""Saves checkpoints by consumed tokens, when stopped and at the end, each whole or absent; restores one at the start.

A background save writes a copy of the tensors while the run trains. There is one at a time: the next save, a stop and
the end wait for it.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from torch import distributed

from lab.config import Experiment
from lab.model.sharding import reshard
from lab.train import checkpoints
from lab.train.callbacks.counting import Counting, crossed
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.recording import Recording
from lab.train.callbacks.stopping import Stopping
from lab.train.folder import RunFolder, packed_counts
from lab.train.shards import Files, ShardWriter, finish_writing, restore_tensors, tensors_to_save, write_shards
from lab.train.state import packed, read_state


class Checkpointing(Callback):
    """Runs after the callbacks whose state it saves, and before the probe, which may be interrupted.

    `start` is the checkpoint to continue at; only the first rank's value is used.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        counting: Counting,
        recording: Recording,
        stopping: Stopping,
        probing: Probing,
        start: checkpoints.Checkpoint | None,
    ) -> None:
        self.config, self.folder, self.start = experiment.train, folder, start
        self.counting, self.recording, self.stopping, self.probing = counting, recording, stopping, probing
        self.saved_at = 0
        self.final: dict[int, int] = {}  # consumed tokens of the checkpoints of final_steps
        self.group: distributed.ProcessGroup | None = None
        self.writing: Future[Any] | None = None

    def on_fit_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Restore the checkpoint that the first rank found.

        Raises: CheckpointError.
        """
        if distributed.is_available() and distributed.is_initialized():
            self.group = distributed.new_group(backend="gloo")  # a save in the background must not meet the training
        start = trainer.strategy.broadcast(self.start)
        if start is not None:
            self.restore(trainer, module, start)

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Count intervals from the current number of tokens."""
        self.saved_at = module.consumed

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when an interval has passed, on a signal, and before a probe, which the last step ends with."""
        if not module.finished or self.stopping.fault:
            return
        due = crossed(self.config.checkpoint_every_tokens, self.saved_at, module.consumed)
        if trainer.global_step in self.config.final_steps:
            due = True
            self.final[trainer.global_step] = module.consumed
        waited_for = self.stopping.stopped or self.probing.is_due(trainer, module)
        if due or waited_for:
            self.save(trainer, module, background=self.config.async_checkpoints and not waited_for)
            self.recording.pause()

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Wait for what is still being written."""
        self.finish()

    def save(self, trainer: lightning.Trainer, module: Any, *, background: bool) -> None:
        """Save a checkpoint; a collective call.

        Raises: CheckpointError where this one, or the one before, cannot be written.
        """
        self.finish()
        root, consumed, final = self.folder.checkpoints, module.consumed, tuple(self.final.values())
        counts = self.counting.total()
        reshard(module.decoder)
        tensors, rest = tensors_to_save(module.decoder, trainer.optimizers[0])
        state = rest | {
            "step": trainer.global_step,
            "consumed_tokens": consumed,
            "skipped_steps": module.skipped_steps,
            "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            "data": trainer.datamodule.state_dict(),  # type: ignore[attr-defined]
            "callbacks": {callback.state_key: callback.state_dict() for callback in trainer.callbacks},  # type: ignore[attr-defined]
        }

        def publish(files: Files) -> None:
            self.folder.write_counts(counts)
            checkpoints.publish(root, consumed, self.config.keep_checkpoints, files, final)

        small = {checkpoints.STATE: packed(state), checkpoints.COUNTS: packed_counts(counts)}
        writer = ShardWriter(root, consumed, small, publish)
        self.writing = write_shards(tensors, writer, self.group, background=background)
        self.saved_at = consumed

    def restore(self, trainer: lightning.Trainer, module: Any, checkpoint: checkpoints.Checkpoint) -> None:
        """Continue at a checkpoint, under any number of processes; before any batch. A collective call.

        Raises: CheckpointError.
        """
        state = read_state(checkpoint)
        optimizer, schedule = trainer.optimizers[0], trainer.lr_scheduler_configs[0].scheduler
        restore_tensors(module.decoder, optimizer, checkpoint, state, self.group)
        module.consumed, module.skipped_steps = state["consumed_tokens"], state["skipped_steps"]
        schedule.load_state_dict(state["schedule"])
        for param_group, lr in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            param_group["lr"] = lr
        trainer.datamodule.load_state_dict(state["data"])  # type: ignore[attr-defined]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            own = state["callbacks"].get(callback.state_key)
            if own:
                callback.load_state_dict(own)
        # Lightning's own counters: batches count from zero again, as a checkpoint is saved between two steps, so that
        # the next step begins with the next batch whatever the number of batches in a step now.
        loop = trainer.fit_loop.epoch_loop
        done = loop.automatic_optimization.optim_progress.optimizer.step.total
        done.ready = done.completed = state["step"]
        if trainer.global_step >= trainer.max_steps:
            self.probing.trained = True
            loop.max_steps += 1  # Lightning calls no hook where no step is left

    def state_dict(self) -> dict[str, Any]:
        """Return which checkpoints are final ones."""
        return {"final": dict(self.final)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the final ones of the steps that are still the last."""
        self.final = {step: at for step, at in state_dict["final"].items() if step in self.config.final_steps}

    def finish(self) -> None:
        """Wait for a save in the background.

        Raises: CheckpointError where it could not be written.
        """
        writing, self.writing = self.writing, None
        if writing is not None:
            finish_writing(writing, self.folder.checkpoints)
