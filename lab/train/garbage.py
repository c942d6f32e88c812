"""Collects Python's garbage between steps, on all ranks after the same ones, as torchtitan does.

Otherwise each rank collects when it has made so many objects, and the others wait for it in the next collective call.
What exists before the first step is left out, so that a collection takes milliseconds and nothing accumulates.
"""

from __future__ import annotations

import gc
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

EVERY_STEPS = 50  # torchtitan's gc_freq


class Garbage(Callback):
    """Begins with the first micro-batch, after the loaders have been forked, which collect as usual."""

    def on_train_batch_start(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        """Turn automatic collections off."""
        if gc.isenabled():
            gc.collect()
            gc.freeze()
            gc.disable()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        """Collect after every so many steps."""
        if module.finished and trainer.global_step % EVERY_STEPS == 0:
            gc.collect()

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Turn automatic collections on."""
        gc.unfreeze()
        gc.enable()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """Turn automatic collections on."""
        self.on_train_end(trainer, module)
