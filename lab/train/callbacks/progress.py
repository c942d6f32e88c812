"""The progress bar: consumed tokens, loss, tokens per second, the last effective length."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from lab.bars import Bar
from lab.config import Experiment
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.recording import Recording


class Progress(Callback):
    """Shows the latest values of the other callbacks; writes to stderr on the first rank only."""

    def __init__(self, experiment: Experiment, recording: Recording, probing: Probing) -> None:
        self.train, self.recording, self.probing = experiment.train, recording, probing
        self.bar: Bar | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Open the bar at the current number of tokens, and let the probe name what it measures."""
        if trainer.is_global_zero:
            total = self.train.steps * self.train.batch_tokens
            self.bar = Bar(total=total, initial=module.consumed, unit="tok", unit_scale=True, desc="train")
            self.probing.report = self.bar.set_postfix_str

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance by the step's tokens."""
        if self.bar is None or not module.finished:
            return
        latest, length = self.recording.latest, self.probing.latest
        if latest:
            loss = "-" if latest["loss"] is None else format(latest["loss"], ".3f")
            text = f"loss {loss}, {latest['tokens_per_s']:,.0f} tok/s"
            self.bar.set_postfix_str(text + ("" if length is None else f", effective length {length}"), refresh=False)
        self.bar.update(module.consumed - self.bar.n)

    def teardown(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Close the bar, also after an error, and keep its last line."""
        if self.bar is not None:
            self.bar.close()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """Close the bar; Lightning calls no teardown then."""
        self.teardown(trainer, module, "fit")
