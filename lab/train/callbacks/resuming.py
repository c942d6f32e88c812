"""The state of a run in training: collected for a checkpoint, and restored from one under any number of processes."""

from __future__ import annotations

from typing import Any

import lightning
from torch import Tensor
from torch.distributed import ProcessGroup

from lab.model.sharding import reshard
from lab.train.checkpoints import Checkpoint
from lab.train.shards import restore_tensors, tensors_to_save
from lab.train.state import read_state


def collect(trainer: lightning.Trainer, module: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Collect a run's tensors, by name, and its small state. A collective call."""
    reshard(module.decoder)
    tensors, small = tensors_to_save(module.decoder, trainer.optimizers[0])
    state = {
        "step": trainer.global_step,
        "consumed_tokens": module.consumed,
        "skipped_steps": module.skipped_steps,
        "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "data": trainer.datamodule.state_dict(),  # type: ignore[attr-defined]
        "callbacks": {callback.state_key: callback.state_dict() for callback in trainer.callbacks},  # type: ignore[attr-defined]
    }
    return tensors, state | small


def restore(trainer: lightning.Trainer, module: Any, checkpoint: Checkpoint, group: ProcessGroup | None) -> None:
    """Continue at a checkpoint; called when model and optimizer exist and before any batch. A collective call.

    Raises: CheckpointError.
    """
    state = read_state(checkpoint)
    restore_tensors(module.decoder, trainer.optimizers[0], checkpoint, state, group)
    module.consumed, module.skipped_steps = state["consumed_tokens"], state["skipped_steps"]
    schedule = trainer.lr_scheduler_configs[0].scheduler
    schedule.load_state_dict(state["schedule"])
    for param_group, lr in zip(trainer.optimizers[0].param_groups, schedule.get_last_lr(), strict=True):
        param_group["lr"] = lr
    trainer.datamodule.load_state_dict(state["data"])  # type: ignore[attr-defined]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        own = state["callbacks"].get(callback.state_key)
        if own:
            callback.load_state_dict(own)
    continue_at(trainer, state["step"])


def continue_at(trainer: lightning.Trainer, step: int) -> None:
    """Let Lightning count optimizer steps from `step`; only this and `reopen` access its loops.

    Batches count from zero again: a checkpoint is saved between two steps, so that the next step begins with the next
    batch, whatever the number of batches in a step now.
    """
    done = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    done.ready = done.completed = step


def reopen(trainer: lightning.Trainer) -> None:
    """Raise Lightning's limit of steps after the last one: it calls no hook where no step is left."""
    trainer.fit_loop.epoch_loop.max_steps += 1
