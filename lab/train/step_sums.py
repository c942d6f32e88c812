"""What one optimizer step adds up over packs and ranks: on the device by name, and its copy on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SUMS = ("loss", "targets", "tokens", "stop", "weight")
"""Nats, scored tokens, tokens, ranks asked to stop, the targets' loss weights. A metric adds its name here."""


class StepSums:
    """Named sums in one float64 vector, which one all-reduce adds up over ranks and one copy takes to the host.

    `not_finite` has a flag for each stream, set where a pack's loss is not finite.
    """

    def __init__(self, n_streams: int) -> None:
        self.vector = torch.zeros(len(SUMS) + n_streams, dtype=torch.float64, device="cpu")

    def __getitem__(self, name: str) -> Tensor:
        """Return a sum as a view of no dimensions."""
        return self.vector[SUMS.index(name)]

    @property
    def not_finite(self) -> Tensor:
        """The flags of all streams, as a view."""
        return self.vector[len(SUMS) :]


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
