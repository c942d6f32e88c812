"""The optim section of a run's config, and the learning rate as a function of the step; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from lab.schema import NonNegative, PositiveFloat, Section

BETA1 = 0.9  # AdamW's decay of the mean gradient
WEIGHT_DECAY = 0.1  # decoupled, of the matrices; vectors have none
CLIP_NORM = 1.0  # largest norm of the whole gradient


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Section):
    """AdamW, warm-up in steps, cosine to a floor, clipping (arXiv:2410.18745, A.2)."""

    lr: PositiveFloat = 3e-3
    """Highest learning rate, reached at the end of the warm-up."""
    min_lr: Annotated[float, Ge(0)] = 3e-4
    """Final learning rate of the cosine."""
    warmup_steps: NonNegative = 100
    """Optimizer steps of linear warm-up."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.95
    """AdamW's decay of the mean squared gradient."""

    def rules(self) -> list[str]:
        """Return a fault for a floor above the peak."""
        if self.min_lr > self.lr:
            return [f"min_lr={self.min_lr}: must be <= lr={self.lr}; lower min_lr or raise lr"]
        return []

    def lr_at(self, step: int, total_steps: int) -> float:
        """Return the learning rate of step `step`, 0-based, of `total_steps`.

        Example:
            >>> optim = OptimConfig(lr=1.0, min_lr=0.1, warmup_steps=2)
            >>> [round(optim.lr_at(step, 4), 3) for step in range(5)]
            [0.5, 1.0, 1.0, 0.55, 0.1]
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        return self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))
