"""Adjusted base frequency: RoPE with a larger base, so that rotations over long distances are slower.

    inv_freq[j] = theta^(-2j / head_dim),   theta = 500,000 instead of 10,000

Source: Xiong et al. 2023, arXiv:2309.16039; arXiv:2401.07004, section 3.
"""

from dataclasses import dataclass
from typing import Literal

from lab.positions.method import FrequencyMethod, Tensor
from lab.positions.rope import Rope
from lab.schema import PositiveFloat


@dataclass(frozen=True, kw_only=True)
class AdjustedBase(FrequencyMethod):
    """The base and inverse frequencies that ABF and entropy-aware ABF share."""

    theta: PositiveFloat = 500_000.0
    """Rotary base, which replaces the model's own and must be larger."""

    def base(self, theta: float) -> float:
        return self.theta

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute RoPE's inverse frequencies at the base in use: float64 (head_dim / 2,).

        Example:
            >>> abf = Abf(theta=250000.0)
            >>> [round(x, 9) for x in abf.inv_freq(head_dim=4, theta=abf.base(10000.0)).tolist()]
            [1.0, 0.002]
        """
        return Rope().inv_freq(head_dim, theta)


@dataclass(frozen=True, kw_only=True)
class Abf(AdjustedBase):
    """The adjusted base."""

    method: Literal["abf"] = "abf"
