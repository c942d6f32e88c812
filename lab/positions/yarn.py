"""NTK-by-parts: fast pairs are unchanged, slow pairs are interpolated, with a ramp between them.

    r[j]     = train_len * inv_freq[j] / (2 pi),            rotations of pair j within the trained length
    dim(r)   = d ln(train_len / (2 pi r)) / (2 ln theta),   the pair that makes r rotations
    low      = max(floor(dim(beta_fast)), 0),   high = min(ceil(dim(beta_slow)), d - 1),   d = head_dim
    ramp[j]  = clip((j - low) / (high - low), 0, 1)
    inv_freq = (1 - ramp) * theta^(-2j / d) + ramp * theta^(-2j / d) / s,   s = target_len / train_len

Source: Peng et al. 2023 (YaRN), arXiv:2309.00071, section 3.2; arXiv:2401.07004, section 2, which describes the ramp
the wrong way round. The ramp's end is clamped to d - 1, not to the last pair d/2 - 1, as in the released code.

YaRN: the same, and logits sharpened by the logarithm of the factor.

    logit_factor = a^2 with a = 0.1 ln s + 1

Source: the same paper, Eq. 15 (there sqrt(1/t) = a multiplies cos and sin, so that q.k is multiplied twice); a baseline
of arXiv:2410.18745 and arXiv:2401.07004.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from lab.core.errors import ConfigError
from lab.core.schema import Positive, PositiveFloat
from lab.positions.method import Factor, FrequencyMethod, Tensor
from lab.positions.rope import Rope

LEAST_RAMP = 0.001  # width of a ramp whose ends coincide, as in transformers


@dataclass(frozen=True, kw_only=True)
class Parts(FrequencyMethod):
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
            why = "pairs of more rotations than beta_fast stay, of fewer than beta_slow are interpolated"
            yield self.fault("beta_fast", f"must be > beta_slow={self.beta_slow} ({why}); the paper has 32 and 1")

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
        # The ramp divides by high - low.
        if low == high:
            high += LEAST_RAMP
        return low, high


@dataclass(frozen=True, kw_only=True)
class NtkByParts(Parts):
    """NTK-by-parts' parameters."""

    method: Literal["ntk_by_parts"] = "ntk_by_parts"


@dataclass(frozen=True, kw_only=True)
class Yarn(Parts):
    """YaRN's parameters."""

    scales_logits: ClassVar[bool] = True
    method: Literal["yarn"] = "yarn"
    attention_factor: PositiveFloat | None = None
    """Factor a on cos and sin, whose square multiplies the logits. Default: 0.1 ln s + 1."""

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Return the constant factor on the logits, float64 like `q_pos`."""
        a = self.attention_factor or 0.1 * math.log(self.factor) + 1
        return q_pos.double() * 0 + float(a) ** 2
