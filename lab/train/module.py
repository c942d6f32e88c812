"""The LightningModule: one training step, the optimizer, and exact sums over the global batch. Nothing periodic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from torch import Tensor, distributed
from torch.optim.lr_scheduler import LambdaLR

from lab.config.sections import TrainConfig
from lab.model.attention.context import ContextGroup
from lab.model.attention.segments import Segments
from lab.model.config import CLIP_NORM, OptimConfig
from lab.model.decoder import Decoder
from lab.model.optimizer import make_optimizer
from lab.model.sharding import Make, Sharding, Start, build

SUMS = ("loss", "targets", "tokens", "stop", "weight")
"""Nats, scored tokens, tokens, ranks asked to stop, the targets' loss weights. A metric adds its name here."""


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step over all ranks.

    `skipped` is whether loss or gradient were not finite, so that the step changed nothing; `streams` are the streams
    whose packs then had a loss that is not finite, none where only the gradient was not.
    """

    sums: Mapping[str, float]
    grad_norm: float
    lr: float
    skipped: bool
    streams: tuple[int, ...] = ()


class Training(lightning.LightningModule):
    """Trains a decoder on packs; the gradient is the mean over all scored tokens of the global batch.

    With loss weights w it is that of sum of w * loss over sum of w, both over the global batch; the loss that is
    recorded stays the plain mean. A step whose loss or gradient is not finite changes neither weights nor optimizer.
    With `train.context_parallel` so many ranks share a pack, of which each computes a part and the first counts the
    whole. `make` builds the decoder from a seed; `start` loads the weights to start from.
    """

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
        self.consumed = 0  # tokens over all ranks and steps
        self.finished: StepStats | None = None  # set while the hooks after an optimizer step run
        self.stop_asked = False  # this rank received a signal
        self.skipped_steps = 0  # without an update, over the whole run
        # One vector, which one all-reduce adds up over ranks and one copy takes to the host.
        self.vector = torch.zeros(len(SUMS) + train.n_packs, dtype=torch.float64, device="cpu")

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums of this step by name, as views, and `not_finite`, a flag for each stream with such a loss."""
        named = zip(SUMS, self.vector[: len(SUMS)].unbind(), strict=True)
        return {**dict(named), "not_finite": self.vector[len(SUMS) :]}

    def configure_model(self) -> None:
        """Build the decoder, the same on every rank, with the weights to start from; sharded where there is a mesh."""
        if self.decoder is None:
            self.context = ContextGroup.of(self.train_config.context_parallel)
            mesh = None if self.device_mesh is None else self.device_mesh["data_parallel"]
            self.decoder = build(self.make_decoder, self.seed, self.start, mesh=mesh, sharding=self.sharding)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Clear the previous step's statistics."""
        self.finished = None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the summed loss of this rank's tokens over their budget; the exact mean follows with the batch."""
        assert self.decoder is not None, "configure_model builds the decoder"
        segments = Segments(batch["cu_seqlens"], batch["lengths"], batch["tokens"].shape[1], batch["anchors"])
        weights = batch["weights"]
        loss: Tensor = self.decoder(
            batch["tokens"],
            position_ids=batch["position_ids"],
            segments=segments,
            starts=batch["starts"] or (),
            context=self.context,
            targets=batch["targets"],
            loss_weights=weights,
        )
        loss, plain = (loss, loss) if weights is None else loss
        self.vector = self.vector.to(loss.device)
        sums = self.sums
        counted = self.context is None or self.context.rank == 0  # the others of a group have the same pack
        sums["loss"].add_(plain.detach())
        sums["targets"].add_(batch["n_targets"] * counted)  # a number is an argument of the kernel, not a copy to it
        sums["tokens"].add_(segments.n_real * counted)
        sums["stop"].add_(float(self.stop_asked))
        sums["weight"].add_(counted * (batch["n_targets"] if weights is None else weights.sum(dtype=torch.float64)))
        sums["not_finite"][batch["stream"]].add_(~(torch.isfinite(loss.detach()) & torch.isfinite(plain.detach())))
        return loss / (self.train_config.micro_batch_tokens // self.train_config.context_parallel)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Scale the gradient to the mean over the global batch's scored tokens, clip its norm, check that it is finite.

        Lightning and the strategies have averaged over packs and ranks, so the missing factor is budget / targets, or
        budget / the sum of their loss weights. The optimizer obeys `found_inf` on the device, as under a gradient
        scaler; sums and norm are those of all ranks, so that all of them skip the same steps.

        Source: torch/optim/adam.py, _fused_adam.
        """
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(self.vector)
        sums = self.sums
        weight = sums["weight"]
        scale = torch.full_like(weight, self.train_config.batch_tokens) / weight.masked_fill(weight == 0, 1.0)
        parameters = [p for p in self.parameters() if p.grad is not None]
        # A GPU multiplies the whole list in a few kernels only by a factor of its own dtype.
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], scale.to(parameters[0].dtype))
        norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        bad = ~torch.isfinite(norm + sums["loss"]) | (sums["not_finite"].sum() > 0)
        optimizer.found_inf = bad.float()
        found = torch.cat([self.vector, norm[None], bad[None]])
        self.copied = found.to("cpu", non_blocking=True)  # from a GPU to pinned memory, at once
        self.copy_done = torch.cuda.current_stream().record_event() if found.is_cuda else None
        self.vector.zero_()

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Run the step and read its statistics, in the only copy that the host waits for, with the update queued."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.read_stats(optimizer.param_groups[0]["lr"])

    def read_stats(self, lr: float) -> None:
        """Read the statistics of the step that has been queued."""
        if self.copy_done is not None:
            self.copy_done.synchronize()  # waits for nothing that was queued after the copy
        *values, norm, bad = self.copied.tolist()
        sums = dict(zip(SUMS, values, strict=False))
        streams = tuple(stream for stream, flag in enumerate(values[len(SUMS) :]) if flag)
        self.consumed += int(sums["tokens"])
        self.skipped_steps += int(bad)
        self.finished = StepStats(sums, norm, lr, bool(bad), streams)

    def configure_optimizers(self) -> Any:
        """Build the optimizer, and the schedule by step."""
        assert self.decoder is not None, "configure_model builds the decoder"
        optimizer = make_optimizer(self.decoder, self.optim)
        schedule = LambdaLR(optimizer, lambda step: self.optim.lr_at(step, self.train_config.steps) / self.optim.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
