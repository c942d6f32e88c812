"""The LightningModule: it builds the decoder and the optimizer, and its hooks call the step. Nothing periodic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from lab.config.sections import TrainConfig
from lab.model.attention.segments import ContextGroup
from lab.model.config import OptimConfig
from lab.model.decoder import Decoder, make_optimizer
from lab.model.sharding import Make, Sharding, Start, build
from lab.train.step import Step, StepStats


class Training(lightning.LightningModule):
    """Trains a decoder on packs. `make` builds the decoder from a seed; `start` loads the weights to start from."""

    def __init__(
        self,
        make: Make,
        optim: OptimConfig,
        train: TrainConfig,
        *,
        seed: int,
        sharding: Sharding = Sharding(),
        start: Start | None = None,
    ) -> None:
        super().__init__()
        self.make_decoder = make
        self.optim = optim
        self.train_config = train
        self.seed = seed
        self.sharding = sharding
        self.start = start
        self.context: ContextGroup | None = None
        self.decoder: Decoder | None = None
        self.step = Step(train)
        self.consumed = 0  # tokens over all ranks and steps
        self.finished: StepStats | None = None  # set while the hooks after an optimizer step run
        self.stop_asked = False  # this rank received a signal
        self.skipped_steps = 0  # without an update, over the whole run

    def configure_model(self) -> None:
        """Build the decoder, the same on every rank, with the weights to start from; sharded where there is a mesh."""
        if self.decoder is None:
            self.context = ContextGroup.of(self.train_config.context_parallel)
            mesh = None if self.device_mesh is None else self.device_mesh["data_parallel"]
            self.decoder = build(self.make_decoder, self.seed, self.start, mesh=mesh, sharding=self.sharding)

    def configure_optimizers(self) -> Any:
        """Build the optimizer, and the schedule by step."""
        assert self.decoder is not None, "configure_model builds the decoder"
        optimizer = make_optimizer(self.decoder, self.optim)
        schedule = LambdaLR(optimizer, lambda step: self.optim.lr_at(step, self.train_config.steps) / self.optim.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Clear the previous step's statistics."""
        self.finished = None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the loss of a pack."""
        assert self.decoder is not None, "configure_model builds the decoder"
        return self.step.loss(self.decoder, batch, self.context, self.stop_asked)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Finish the gradient of the global batch."""
        self.step.finish_gradient(self.parameters(), optimizer)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Run the step, its backward passes among it, and read its statistics."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.read_stats(optimizer.param_groups[0]["lr"])

    def read_stats(self, lr: float) -> None:
        """Take over the statistics of the step that has been queued."""
        self.finished = self.step.statistics(lr)
        self.consumed += int(self.finished.sums["tokens"])
        self.skipped_steps += self.finished.skipped
