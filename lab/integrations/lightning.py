"""A callback of Lightning's Trainer that counts f and g and measures the retrieval range: ReachCallback.

    trainer = lightning.Trainer(callbacks=[ReachCallback(tokenizer, window=2048, every_steps=500)])

It logs by the module's `log_dict`. The counts are part of Lightning's checkpoints.
"""

from typing import Any

import lightning

from lab.integrations.watcher import Watcher


class ReachCallback(lightning.Callback):
    """Probes every `every_steps` steps; `attribute` is the module's model, which its training step calls.

    `options` are those of lab.watch. `watch` is the watcher, from the start of a fit on.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        window: int,
        every_steps: int = 500,
        tests: int = 64,
        attribute: str = "model",
        **options: Any,
    ) -> None:
        self.every_steps, self.tests, self.attribute = every_steps, tests, attribute
        self.arguments = {"tokenizer": tokenizer, "window": window, **options}
        self.watch: Watcher | None = None
        self.restored: dict[str, Any] | None = None

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Watch the model, from the counts of the checkpoint on that the fit resumes from."""
        self.watch = Watcher(getattr(pl_module, self.attribute), **self.arguments)
        if self.restored is not None:
            self.watch.load_state_dict(self.restored)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Probe if it is due after an update, and log."""
        is_update = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if self.watch is not None and is_update and trainer.global_step % self.every_steps == 0:
            pl_module.log_dict(self.watch.summary(self.tests))

    def state_dict(self) -> dict[str, Any]:
        return {} if self.watch is None else self.watch.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.restored = state_dict or None
