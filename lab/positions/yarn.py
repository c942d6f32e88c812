"""Methods with a factor of its own for each rotary pair: NTK-by-parts, YaRN, Llama 3.1's scaling.

NTK-by-parts: fast pairs are unchanged, slow pairs are interpolated, with a ramp between them.

    r[j]     = train_len * inv_freq[j] / (2 pi),            rotations of pair j within the trained length
    dim(r)   = d ln(train_len / (2 pi r)) / (2 ln theta),   the pair that makes r rotations
    low      = max(floor(dim(beta_fast)), 0),   high = min(ceil(dim(beta_slow)), d - 1),   d = head_dim
    ramp[j]  = clip((j - low) / (high - low), 0, 1)
    inv_freq = (1 - ramp) * theta^(-2j / d) + ramp * theta^(-2j / d) / s,   s = target_len / train_len

Source: Peng et al. 2023 (YaRN), arXiv:2309.00071, section 3.2; arXiv:2401.07004, section 2, which describes the ramp
the wrong way round. The ramp's end is clamped to d - 1, not to the last pair d/2 - 1, as in the released code.

YaRN: the same, and logits sharpened by the logarithm of the factor.

    logit_factor = a^2 with a = 0.1 ln s + 1

Source: the same paper, Eq. 15 (there sqrt(1/t) = a multiplies cos and sin, so that q.k is multiplied by 1/t); a
baseline of arXiv:2410.18745 and arXiv:2401.07004.

Llama 3.1's scaling: long waves are interpolated, short ones are unchanged, with a smooth step between them.

    wavelength[j] = 2 pi / theta^(-2j / d),   in tokens
    smooth[j]     = clip((L / wavelength[j] - low) / (high - low), 0, 1),   L = train_len
    inv_freq[j]   = theta^(-2j / d) * ((1 - smooth[j]) / s + smooth[j]),    s = factor

low and high are `low_freq_factor` and `high_freq_factor`: waves longer than L / low are slowed by the whole factor,
waves shorter than L / high not at all. Source: Llama Team 2024, arXiv:2407.21783, the model of arXiv:2410.18745, A.1;
the transformers library computes the same.
"""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

from lab.core.errors import ConfigError
from lab.core.schema import Positive, PositiveFloat
from lab.positions.method import Factor, FrequencyMethod, Tensor
from lab.positions.rope import Rope


class ByParts(FrequencyMethod):
    """The parameters and inverse frequencies that NTK-by-parts and YaRN share."""

    factor: Factor
    """Factor s = target_len / train_len, at least 1."""
    train_len: Positive
    """Pretraining length in tokens."""
    beta_fast: PositiveFloat = 32.0
    """Rotations within the pretraining length from which on a pair is left unchanged."""
    beta_slow: PositiveFloat = 1.0
    """Rotations within the pretraining length up to which a pair is interpolated by the whole factor."""
    truncate: bool = True
    """Whether the ramp begins and ends at whole pairs."""

    def rules(self) -> Iterator[str]:
        """Require the ramp's ends to be in order."""
        if self.beta_fast <= self.beta_slow:
            yield self.format_error(
                "beta_fast",
                f"must be > beta_slow={self.beta_slow} (pairs of more rotations than beta_fast stay, of fewer than "
                "beta_slow are interpolated); the paper has 32 and 1",
            )

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Blend RoPE's inverse frequencies with the interpolated ones: float64 (head_dim / 2,)."""
        low, high = self.ramp_ends(head_dim, theta)
        plain = Rope().inv_freq(head_dim, theta)
        ramp = ((plain.new_tensor(range(len(plain))) - low) / (high - low)).clamp(0, 1)
        # The equation's sum in a form that is exactly plain at factor 1.
        return plain * (1 - ramp * (1 - 1 / self.factor))

    def ramp_ends(self, head_dim: int, theta: float) -> tuple[float, float]:
        """Compute the pairs where interpolation begins and where it is complete.

        Raises: ConfigError for a base of 1 or less, whose pairs do not slow down one after another.
        Example:
            >>> NtkByParts(factor=8.0, train_len=2048).ramp_ends(head_dim=64, theta=10000.0)
            (8, 21)
        """
        if theta <= 1:
            raise ConfigError(f"theta={theta}: must be > 1 (pairs must differ in speed); raise theta")

        def dim(rotations: float) -> float:
            return head_dim * math.log(self.train_len / (2 * math.pi * rotations)) / (2 * math.log(theta))

        low, high = dim(self.beta_fast), dim(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        # The ramp divides by high - low. transformers has this width where its ends coincide.
        if low == high:
            high += 0.001
        return low, high


class NtkByParts(ByParts):
    """NTK-by-parts' parameters."""

    method: Literal["ntk_by_parts"] = "ntk_by_parts"


class Yarn(ByParts):
    """YaRN's parameters."""

    scales_logits: ClassVar[bool] = True
    method: Literal["yarn"] = "yarn"
    attention_factor: PositiveFloat | None = None
    """Factor a on cos and sin, whose square multiplies the logits. Default: 0.1 ln s + 1."""

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Return the constant factor on the logits, float64 like `q_pos`."""
        a = self.attention_factor or 0.1 * math.log(self.factor) + 1
        return q_pos.double() * 0 + float(a) ** 2


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
            yield self.format_error("high_freq_factor", f"{rule}; Llama 3.1 has 4 and 1")

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Slow RoPE's inverse frequencies by wavelength: float64 (head_dim / 2,)."""
        plain = Rope().inv_freq(head_dim, theta)
        waves = self.train_len * plain / (2 * math.pi)  # wavelengths within the pretraining length
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = ((waves - low) / (high - low)).clamp(0, 1)
        # The equation in a form that is exactly plain at factor 1.
        return plain * (1 - (1 - smooth) * (1 - 1 / self.factor))
