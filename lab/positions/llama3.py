"""Llama 3.1's scaling: long waves are interpolated, short ones stay, and a smooth step joins them.

    wavelength[j] = 2 pi / theta^(-2j / d),   in tokens
    smooth[j]     = clip((L / wavelength[j] - low) / (high - low), 0, 1),   L = train_len
    inv_freq[j]   = theta^(-2j / d) * ((1 - smooth[j]) / s + smooth[j]),    s = factor

low and high are `low_freq_factor` and `high_freq_factor`: waves longer than L / low are slowed by the whole factor,
waves shorter than L / high not at all. Source: the Llama 3.1 release (Llama Team 2024), the model of
papers/string.txt A.1, as the transformers library computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions import rope
from lab.positions.base import Factor
from lab.schema import Positive, PositiveFloat, Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Llama3(Section):
    """Llama 3.1's parameters."""

    method: Literal["llama3"] = "llama3"
    factor: Factor
    """Factor s by which the longest waves are slowed, at least 1; 8 in Llama 3.1."""
    train_len: Positive
    """Length L of the pretraining before the extension, in tokens; 8192 in Llama 3.1."""
    low_freq_factor: PositiveFloat = 1.0
    """Waves longer than train_len over this are slowed by the whole factor."""
    high_freq_factor: PositiveFloat = 4.0
    """Waves shorter than train_len over this stay."""

    def rules(self) -> list[str]:
        """Keep the step's ends in order."""
        if self.high_freq_factor <= self.low_freq_factor:
            return [
                f"high_freq_factor={self.high_freq_factor}: must be > low_freq_factor={self.low_freq_factor} (short "
                "waves stay, long ones are slowed); Llama 3.1 has 4 and 1"
            ]
        return []


Config = Llama3


def inv_freq(config: Llama3, head_dim: int, theta: float) -> Tensor:
    """Slow RoPE's inverse frequencies by wavelength.

    Shapes: float64 (head_dim / 2,).
    """
    plain = rope.inv_freq(rope.Rope(), head_dim, theta)
    waves = config.train_len * plain / (2 * math.pi)  # how many wavelengths the pretraining length holds
    low, high = config.low_freq_factor, config.high_freq_factor
    smooth = ((waves - low) / (high - low)).clamp(0, 1)
    return plain * (1 - (1 - smooth) * (1 - 1 / config.factor))  # exactly plain at factor 1
