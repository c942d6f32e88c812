"""The training step, in the order in which it happens.

    for every pack:            1. forward and loss   2. sums            (Lightning: backward pass)
    for every global batch:    3. sums of all ranks  4. scale  5. clip  6. is it finite?  (the optimizer's update)
                               7. statistics

The gradient is the mean over all scored tokens of the global batch. With loss weights w it is that of sum of w * loss
over sum of w, both over the global batch; the loss that is recorded stays the plain mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lab.config.sections import TrainConfig
from lab.model.attention.segments import ContextGroup, Segments
from lab.model.config import CLIP_NORM
from lab.model.decoder import Decoder

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


class Step:
    """The sums of one step while it happens, in one vector, which one all-reduce adds up over ranks.

    With `train.context_parallel` so many ranks share a pack, of which each computes a part and the first counts the
    whole. A step whose loss or gradient is not finite changes neither weights nor optimizer.
    """

    def __init__(self, train: TrainConfig) -> None:
        self.train = train
        self.vector = torch.zeros(len(SUMS) + train.n_packs, dtype=torch.float64, device="cpu")

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums by name, as views, and `not_finite`, a flag for each stream with such a loss."""
        named = zip(SUMS, self.vector[: len(SUMS)].unbind(), strict=True)
        return {**dict(named), "not_finite": self.vector[len(SUMS) :]}

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
        sums["not_finite"][batch["stream"]].add_(~(torch.isfinite(loss.detach()) & torch.isfinite(plain.detach())))
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
        found = [p for p in parameters if p.grad is not None]
        # a GPU multiplies the whole list in a few kernels only by a factor of its own dtype
        torch._foreach_mul_([p.grad for p in found if p.grad is not None], scale.to(found[0].dtype))

        # 5. clip
        norm = torch.nn.utils.clip_grad_norm_(found, CLIP_NORM)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm

        # 6. is it finite? sums and norm are those of all ranks, so that all of them skip the same steps
        bad = ~torch.isfinite(norm + sums["loss"]) | (sums["not_finite"].sum() > 0)
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
        streams = tuple(stream for stream, flag in enumerate(values[len(SUMS) :]) if flag)
        return StepStats(dict(zip(SUMS, values, strict=False)), norm, lr, bool(bad), streams)
