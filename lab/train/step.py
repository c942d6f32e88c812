"""The training step, in the order in which it happens.

    for every pack:            1. forward and loss   2. sums            (Lightning: backward pass)
    for every global batch:    3. sums of all ranks  4. scale  5. clip  6. is it finite?  (the optimizer's update)
                               7. statistics

The gradient is the mean over all scored tokens of the global batch. With loss weights w it is that of sum of w * loss
over sum of w, both over the global batch; the loss that is recorded stays the plain mean.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from torch import Tensor, distributed, nn
from torch.optim.lr_scheduler import LambdaLR

from lab.config import TrainConfig
from lab.model.attention.segments import ContextGroup, Segments
from lab.model.config import CLIP_NORM, OptimConfig
from lab.model.decoder import Decoder, make_optimizer
from lab.model.sharding import Make, Sharding, Start, build

SUMS = ("loss", "targets", "tokens", "stop", "weight")
"""Nats, scored tokens, tokens, ranks asked to stop, the targets' loss weights. A metric adds its name here."""


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step over all ranks; one that is `skipped` was not finite and changed nothing."""

    sums: Mapping[str, float]
    grad_norm: float
    lr: float
    skipped: bool


class Step:
    """The sums of one step while it happens, in one vector, which one all-reduce adds up over ranks.

    With `train.context_parallel` so many ranks share a pack, of which each computes a part and the first counts the
    whole. A step whose loss or gradient is not finite changes neither weights nor optimizer.
    """

    def __init__(self, train: TrainConfig) -> None:
        self.train = train
        self.vector = torch.zeros(len(SUMS), dtype=torch.float64, device="cpu")

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums by name, as views."""
        return dict(zip(SUMS, self.vector.unbind(), strict=True))

    def loss(self, decoder: Decoder, batch: Mapping[str, Any], context: ContextGroup | None, stop: bool) -> Tensor:
        """Return the summed loss of this rank's tokens of a pack over their budget, and add up what it was made of."""
        # 1. forward and loss
        segments = Segments(batch["cu_seqlens"], batch["lengths"], batch["tokens"].shape[1], batch["anchors"])
        weights = batch["weights"]
        loss: Tensor = decoder(
            batch["tokens"],
            position_ids=batch["position_ids"],
            segments=segments,
            starts=batch["starts"] or (),
            context=context,
            targets=batch["targets"],
            loss_weights=weights,
        )
        loss, plain = (loss, loss) if weights is None else loss

        # 2. sums; a number is an argument of the kernel that adds it, not a copy to the device
        self.vector = self.vector.to(loss.device)
        sums = self.sums
        counted = context is None or context.rank == 0  # the others of a group have the same pack
        sums["loss"].add_(plain.detach())
        sums["targets"].add_(batch["n_targets"] * counted)
        sums["tokens"].add_(segments.n_real * counted)
        sums["stop"].add_(float(stop))
        sums["weight"].add_(counted * (batch["n_targets"] if weights is None else weights.sum(dtype=torch.float64)))
        return loss / (self.train.micro_batch_tokens // self.train.context_parallel)

    def finish_gradient(self, parameters: Iterable[nn.Parameter], optimizer: Any) -> None:
        """Make the gradient that of the mean over the global batch, clip it, and let the optimizer skip a bad one.

        Source: torch/optim/adam.py, _fused_adam: `found_inf` is obeyed on the device, as under a gradient scaler.
        """
        # 3. sums of all ranks
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(self.vector)
        sums = self.sums

        # 4. scale: Lightning and the strategies have averaged over packs and ranks, so that what is missing is
        # budget / targets, or budget / the sum of their loss weights
        weight = sums["weight"]
        scale = torch.full_like(weight, self.train.batch_tokens) / weight.masked_fill(weight == 0, 1.0)
        trained = [p for p in parameters if p.grad is not None]
        # a GPU multiplies the whole list in a few kernels only by a factor of its own dtype
        torch._foreach_mul_([p.grad for p in trained if p.grad is not None], scale.to(trained[0].dtype))

        # 5. clip
        norm = torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm

        # 6. is it finite? sums and norm are those of all ranks, so that all of them skip the same steps
        bad = ~torch.isfinite(norm + sums["loss"])
        optimizer.found_inf = bad.float()

        statistics = torch.cat([self.vector, norm[None], bad[None]])
        self.copied = statistics.to("cpu", non_blocking=True)  # from a GPU to pinned memory, at once
        self.copy_done = torch.cuda.current_stream().record_event() if statistics.is_cuda else None
        self.vector.zero_()

    def statistics(self, lr: float) -> StepStats:
        """Read what was added up, in the only copy that the host waits for, with the update queued."""
        # 7. statistics
        if self.copy_done is not None:
            self.copy_done.synchronize()  # waits for nothing that was queued after the copy
        *values, norm, bad = self.copied.tolist()
        return StepStats(dict(zip(SUMS, values, strict=True)), norm, lr, bool(bad))


class Training(lightning.LightningModule):
    """Trains a decoder on packs. `make` builds the decoder from a seed; `start` loads the weights to start from."""

    def __init__(
        self, make: Make, optim: OptimConfig, train: TrainConfig, *, seed: int, sharding: Sharding, start: Start | None
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
        assert self.decoder is not None, "configure_model builds the decoder"
        optimizer = make_optimizer(self.decoder, self.optim)
        schedule = LambdaLR(optimizer, lambda step: self.optim.lr_at(step, self.train_config.steps) / self.optim.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.finished = None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        assert self.decoder is not None, "configure_model builds the decoder"
        return self.step.loss(self.decoder, batch, self.context, self.stop_asked)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        self.step.finish_gradient(self.parameters(), optimizer)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Run the step, its backward passes among it, and read its statistics."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.read_stats(optimizer.param_groups[0]["lr"])

    def read_stats(self, lr: float) -> None:
        self.finished = self.step.statistics(lr)
        self.consumed += int(self.finished.sums["tokens"])
        self.skipped_steps += self.finished.skipped
