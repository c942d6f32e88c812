"""Llama 3.1's scaling: long waves are interpolated, short ones are unchanged, with a smooth step between them.

    wavelength[j] = 2 pi / theta^(-2j / d),   in tokens
    smooth[j]     = clip((L / wavelength[j] - low) / (high - low), 0, 1),   L = train_len
    inv_freq[j]   = theta^(-2j / d) * ((1 - smooth[j]) / s + smooth[j]),    s = factor

low and high are `low_freq_factor` and `high_freq_factor`: waves longer than L / low are slowed by the whole factor,
waves shorter than L / high not at all. Source: Llama Team 2024, arXiv:2407.21783, the model of arXiv:2410.18745, A.1;
the transformers library computes the same.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lab.core.schema import Positive, PositiveFloat
from lab.positions.method import Factor, FrequencyMethod, Tensor
from lab.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class Llama3(FrequencyMethod):
    """Llama 3.1's parameters."""

    method: Literal["llama3"] = "llama3"
    factor: Factor
    """Factor s by which the longest waves are slowed, at least 1; 8 in Llama 3.1."""
    train_len: Positive
    """Length L of the pretraining before the extension, in tokens; 8192 in Llama 3.1."""
    low_freq_factor: PositiveFloat = 1.0
    """Waves longer than train_len over this are slowed by the whole factor."""
    high_freq_factor: PositiveFloat = 4.0
    """Waves shorter than train_len over this are unchanged."""

    def rules(self) -> Iterator[str]:
        """Require the step's ends to be in order."""
        if self.high_freq_factor <= self.low_freq_factor:
            rule = f"must be > low_freq_factor={self.low_freq_factor} (short waves stay, long ones are slowed)"
            yield self.fault("high_freq_factor", f"{rule}; Llama 3.1 has 4 and 1")

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Slow RoPE's inverse frequencies by wavelength: float64 (head_dim / 2,)."""
        plain = Rope().inv_freq(head_dim, theta)
        waves = self.train_len * plain / (2 * math.pi)  # wavelengths within the pretraining length
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = ((waves - low) / (high - low)).clamp(0, 1)
        # The equation in a form that is exactly plain at factor 1.
        return plain * (1 - (1 - smooth) * (1 - 1 / self.factor))
