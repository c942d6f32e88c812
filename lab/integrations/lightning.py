"""A callback of Lightning's Trainer that counts f and g and measures the retrieval range: ReachCallback.

    trainer = lightning.Trainer(callbacks=[ReachCallback(tokenizer, window=2048, every_steps=500)])

It writes to the Trainer's loggers and to `trainer.callback_metrics`. The counts are part of Lightning's checkpoints.
"""

from operator import attrgetter
from typing import Any

from lightning import Callback, LightningModule, Trainer

from lab.core.errors import ConfigError
from lab.core.types import Row
from lab.integrations.tokenizer_adapter import TextTokenizer
from lab.integrations.trackers import log_probe
from lab.integrations.watcher import Watcher


class ReachCallback(Callback):
    """Probes every `every_steps` steps; `attribute` is the module's model, which its training step calls.

    It may be dotted. `options` are those of lab.watch. `watch` is the watcher, from the start of a fit on.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer | None,
        *,
        window: int,
        every_steps: int = 500,
        tests: int = 64,
        attribute: str = "model",
        **options: Any,
    ) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps={every_steps}: must be >= 1; use the steps between two probes")
        self.every_steps, self.tests, self.attribute = every_steps, tests, attribute
        self.arguments: Row = {"tokenizer": tokenizer, "window": window, **options}
        self.watch: Watcher | None = None
        self.restored: Row | None = None
        self.last_step = 0

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Row) -> None:
        """Take the counts of the checkpoint that a fit resumes from."""
        if trainer.state.fn == "fit":
            self.restored = checkpoint["callbacks"].get(self.state_key, {})

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the model; the counts of an earlier fit remain only if the same Trainer continues its steps.

        Raises: LabError for options and a tokenizer by which a probe is not possible.
        """
        try:
            model = attrgetter(self.attribute)(pl_module)
        except AttributeError as error:
            raise ConfigError(
                f"attribute={self.attribute}: is not in {type(pl_module).__name__}; name the model that its training "
                "step calls"
            ) from error
        self.last_step = trainer.global_step
        if self.watch is not None:
            self.watch.close()
            if self.restored is None and self.last_step:
                self.restored = self.watch.state_dict()
        self.watch = Watcher(model, **self.arguments)
        self.watch.build_tests(self.tests)
        if self.restored is not None:
            self.watch.load_state_dict(self.restored)
            self.restored = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Probe if it is due, and log the values, the table and the figure."""
        # A batch makes no step under accumulation, and several with several optimizers.
        before, self.last_step = self.last_step, trainer.global_step
        if self.watch is None or self.last_step // self.every_steps == before // self.every_steps:
            return
        values = self.watch.summary(self.tests)
        pl_module.log_dict(values, logger=False)
        # By log_dict a logger would receive only every `log_every_n_steps`th batch.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
            if trainer.is_global_zero:
                log_probe(getattr(logger, "experiment", None), self.watch, step)

    def state_dict(self) -> Row:
        return {} if self.watch is None else self.watch.state_dict()
