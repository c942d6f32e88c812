"""Stopping on a signal: the step that runs is finished, a checkpoint saved, the run ends with exit status 75.

A second signal ends the process at once.
"""

from __future__ import annotations

import signal
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Ctrl-C; kill and preemption; SLURM's warning


class Stopping(Callback):
    """Turns signals into a stop that all ranks agree on; they learn of it with the step's sums."""

    def __init__(self) -> None:
        self.stopped = False
        self.previous: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Take the signals over, after Lightning has installed handlers of its own."""

        def ask(number: int, frame: Any) -> None:
            if module.stop_asked:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            module.stop_asked = True

        self.previous = {number: signal.signal(number, ask) for number in SIGNALS}

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the loop once all ranks know; the last step of a run is an end of its own."""
        if module.finished and module.stop_agreed and trainer.global_step < trainer.max_steps:
            self.stopped = True
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Give the signals back."""
        self.restore()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """Give the signals back."""
        self.restore()

    def restore(self) -> None:
        """Install what handled the signals before."""
        for number, handler in self.previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self.previous = {}
