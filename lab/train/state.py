"""What a run trains: the decoder, its optimizer and schedule, and how far it has come; and the sums of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim.lr_scheduler import LambdaLR

from lab.config import TrainConfig
from lab.model.attention.segments import ContextGroup
from lab.model.config import OptimConfig
from lab.model.decoder import Decoder
from lab.model.sharding import Make, Sharding, Start

SUMS = ("loss", "targets", "tokens", "stop", "weight")
"""Nats, scored tokens, tokens, ranks asked to stop, the targets' loss weights. A metric adds its name here."""


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step over all ranks; one that is `skipped` was not finite and changed nothing."""

    sums: Mapping[str, float]
    grad_norm: float
    lr: float
    skipped: bool


class StepSums:
    """The sums of one step while it happens, in one vector, which one all-reduce adds up over ranks."""

    def __init__(self) -> None:
        # float64: a sum of float32 counts tokens exactly only up to 2**24, which a large global batch exceeds.
        self.vector = torch.zeros(len(SUMS), dtype=torch.float64, device="cpu")

    def views(self) -> dict[str, Tensor]:
        """Return the sums by name, as views."""
        return dict(zip(SUMS, self.vector.unbind(), strict=True))

    def views_on(self, device: torch.device) -> dict[str, Tensor]:
        """Return the views after a move to a device, which the first pack of a run makes."""
        self.vector = self.vector.to(device)
        return self.views()

    def start_copy(self, norm: Tensor, bad: Tensor, lr: float) -> None:
        """Start the copy to the host of the sums, the gradient's norm and whether the step is bad; begin at zero."""
        self.lr = lr  # before the schedule moves on
        statistics = torch.cat([self.vector, norm[None], bad[None]])
        # From a GPU this copies to pinned memory without a wait. The event marks the end of the copy in the queue: to
        # wait for it is not to wait for the update, which is queued after it.
        self.copied = statistics.to("cpu", non_blocking=True)
        self.copy_done = torch.cuda.current_stream().record_event() if statistics.is_cuda else None
        self.vector.zero_()

    def read(self) -> StepStats:
        """Wait for the copy, and read it."""
        if self.copy_done is not None:
            self.copy_done.synchronize()
        *values, norm, bad = self.copied.tolist()
        return StepStats(dict(zip(SUMS, values, strict=True)), norm, self.lr, bool(bad))


@dataclass(frozen=True)
class Recipe:
    """How a decoder is built and trained: `make` builds it from a seed, `start` loads the weights to start from."""

    make: Make
    optim: OptimConfig
    train: TrainConfig
    seed: int
    sharding: Sharding = field(default_factory=Sharding)
    start: Start | None = None
    autocasts: bool = False
    """Whether forward passes run under autocast to bfloat16."""


@dataclass(eq=False)
class TrainState:
    """A decoder in training. `model` is the decoder as Fabric's strategy calls it."""

    recipe: Recipe
    decoder: Decoder
    model: Any
    optimizer: Any
    context: ContextGroup | None = None
    step: int = 0
    """Steps over the whole run, those without an update among them."""
    consumed: int = 0
    """Tokens over all ranks and steps."""
    skipped_steps: int = 0
    """Steps without an update, over the whole run."""
    sums: StepSums = field(default_factory=StepSums)
    last: StepStats | None = None
    """Statistics of the last step."""

    def __post_init__(self) -> None:
        """Start the schedule of the learning rate."""
        optim, steps = self.recipe.optim, self.recipe.train.steps
        self.schedule = LambdaLR(self.inner_optimizer, lambda step: optim.lr_at(step, steps) / optim.lr)

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer itself, without Fabric's wrapper."""
        # The wrapper passes on what is read of it, but not what is set, such as `found_inf`.
        return getattr(self.optimizer, "optimizer", self.optimizer)

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    @property
    def is_sharded(self) -> bool:
        return isinstance(self.decoder, FSDPModule)

    @property
    def is_finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    @property
    def lr(self) -> float:
        return float(self.inner_optimizer.param_groups[0]["lr"])

    @property
    def precision(self) -> Callable[[], AbstractContextManager[Any]]:
        """The context of forward passes: autocast, or nothing if the weights have the dtype to compute in."""
        if not self.recipe.autocasts:
            return nullcontext
        # Fabric's own precision plugin would cast all inputs, and fails on frozen dataclasses.
        return partial(torch.autocast, self.device.type, dtype=torch.bfloat16, cache_enabled=False)
