"""The LightningModule: one training step, the optimizer, and exact sums over the global batch. Nothing periodic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from torch import Tensor, distributed
from torch.optim.lr_scheduler import LambdaLR

from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder, DecoderConfig
from lab.model.optim import OptimConfig
from lab.model.sharding import build
from lab.positions import Distance, Frequencies


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step over all ranks: summed loss in nats, scored tokens, gradient norm, lr."""

    loss_sum: float
    targets: int
    grad_norm: float
    lr: float


class Training(lightning.LightningModule):
    """Trains a decoder on packs; the gradient is the mean over all scored tokens of the global batch.

    With loss weights w it is that of sum of w * loss over sum of w, both over the global batch; the loss that is
    recorded stays the plain mean.
    """

    def __init__(
        self,
        cfg: DecoderConfig,
        optim: OptimConfig,
        *,
        frequencies: Frequencies,
        distance: Distance,
        backend: str,
        seed: int,
        total_steps: int,
        batch_tokens: int,
        micro_batch_tokens: int,
        shard_dtype: torch.dtype | None = None,
        recompute: bool = False,
        start: Callable[[Decoder], None] | None = None,
    ) -> None:
        super().__init__()
        self.cfg, self.optim = cfg, optim
        self.seed = seed
        self.make_decoder = lambda seed: Decoder(
            cfg, frequencies=frequencies, distance=distance, backend=backend, seed=seed, recompute=recompute
        )
        self.total_steps, self.batch_tokens, self.micro_batch_tokens = total_steps, batch_tokens, micro_batch_tokens
        self.shard_dtype, self.start = shard_dtype, start
        self.decoder: Decoder | None = None
        self.consumed = 0  # tokens over all ranks and steps
        self.finished: StepStats | None = None  # set while the hooks after an optimizer step run
        self.stop_asked = False  # this rank received a signal
        self.stop_agreed = False  # any rank received a signal before the last step
        # of the step so far: loss, targets, tokens, stop, and the targets' loss weights
        self.sums = torch.zeros(5, dtype=torch.float64, device="cpu")

    def configure_model(self) -> None:
        """Build the decoder, the same on every rank, with the weights to start from; sharded where there is a mesh."""
        if self.decoder is None:
            mesh = None if self.device_mesh is None else self.device_mesh["data_parallel"]
            self.decoder = build(self.make_decoder, self.seed, self.start, mesh=mesh, dtype=self.shard_dtype)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Clear the previous step's statistics."""
        self.finished = None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the pack's summed loss over its token budget; the exact mean follows when the batch is complete."""
        assert self.decoder is not None, "configure_model builds the decoder"
        segments = Segments(batch["cu_seqlens"], batch["lengths"], batch["tokens"].shape[1], batch["anchors"])
        weights = batch["weights"]
        loss: Tensor = self.decoder(
            batch["tokens"],
            position_ids=batch["position_ids"],
            segments=segments,
            starts=batch["starts"],
            targets=batch["targets"],
            loss_weights=weights,
        )
        loss, plain = (loss, loss) if weights is None else loss
        self.sums = self.sums.to(loss.device)
        self.sums[0] += plain.detach()
        self.sums[1:4] += torch.tensor([batch["n_targets"], segments.n_real, float(self.stop_asked)]).to(self.sums)
        self.sums[4] += batch["n_targets"] if weights is None else weights.sum(dtype=torch.float64)
        return loss / self.micro_batch_tokens

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Scale the gradient to the mean over the global batch's scored tokens, then clip its norm.

        Lightning and the strategies have averaged over packs and ranks, so the missing factor is budget / targets, or
        budget / the sum of their loss weights.
        """
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(self.sums)
        loss_sum, targets, tokens, stop, weight = self.sums.tolist()
        self.sums.zero_()
        parameters = [p for p in self.parameters() if p.grad is not None]
        for parameter in parameters:
            parameter.grad.mul_(self.batch_tokens / (weight or 1.0))  # type: ignore[union-attr]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.optim.clip_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self.consumed += int(tokens)
        self.stop_agreed = stop > 0
        self.finished = StepStats(loss_sum, int(targets), float(norm), optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        """AdamW with decay on matrices only, and the schedule by step."""
        matrices = [p for p in self.parameters() if p.ndim >= 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": self.optim.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        betas = (self.optim.beta1, self.optim.beta2)
        optimizer = torch.optim.AdamW(groups, lr=self.optim.lr, betas=betas, fused=True)
        schedule = LambdaLR(optimizer, lambda step: self.optim.lr_at(step, self.total_steps) / self.optim.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
