"""Adjusted base frequency: RoPE with a larger base, so that far positions turn less.

    inv_freq[j] = theta^(-2j / head_dim),   theta = 500,000 instead of 10,000

Source: Xiong et al. 2023; papers/entropy_abf.txt section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions import rope
from lab.schema import PositiveFloat, Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Abf(Section):
    """The adjusted base."""

    method: Literal["abf"] = "abf"
    theta: PositiveFloat = 500_000.0
    """Rotary base, in place of the model's own; larger than it."""


Config = Abf


def inv_freq(config: Abf, head_dim: int, theta: float) -> Tensor:
    """Compute RoPE's inverse frequencies at the adjusted base, which `theta` is.

    Shapes: float64 (head_dim / 2,).
    Example:
        >>> [round(x, 9) for x in inv_freq(Abf(theta=250000.0), head_dim=4, theta=250000.0).tolist()]
        [1.0, 0.002]
    """
    return rope.inv_freq(rope.Rope(), head_dim, theta)
