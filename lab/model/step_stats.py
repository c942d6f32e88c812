"""Statistics of one optimizer step over all ranks, and their copy from the device to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step over all ranks: summed loss in nats, scored tokens, gradient norm, lr.

    `skipped` is whether loss or gradient were not finite, so that the step changed nothing; `streams` are the streams
    whose packs then had a loss that is not finite, none where only the gradient was not.
    """

    loss_sum: float
    targets: int
    grad_norm: float
    lr: float
    skipped: bool = False
    streams: tuple[int, ...] = ()


class HostCopy:
    """A copy of a vector that is under way to the host; to read it waits for nothing that was queued after it."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.to("cpu", non_blocking=True)  # from a GPU to pinned memory, at once
        self.done = torch.cuda.Event() if values.is_cuda else None
        if self.done is not None:
            self.done.record()

    def read(self) -> list[float]:
        """Wait for the copy and return the values."""
        if self.done is not None:
            self.done.synchronize()
        values: list[float] = self.values.tolist()
        return values
