"""Position interpolation: all rotations are slowed by one factor, so that longer texts fit the trained angles.

    inv_freq[j] = theta^(-2j / head_dim) / s,   s = target_len / train_len,   in radians per token

Source: Chen et al. 2023; papers/dual_chunk_attention.txt section 2. The papers divide positions by s; here they stay
whole and the frequencies are divided, which is the same angle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions import rope
from lab.positions.base import Extension

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Pi(Extension):
    """Position interpolation's parameters."""

    method: Literal["pi"] = "pi"


Config = Pi


def inv_freq(config: Pi, head_dim: int, theta: float) -> Tensor:
    """Divide RoPE's inverse frequencies by the factor.

    Shapes: float64 (head_dim / 2,).
    Example:
        >>> inv_freq(Pi(factor=4.0), head_dim=4, theta=10000.0).tolist()
        [0.25, 0.0025]
    """
    return rope.inv_freq(rope.Rope(), head_dim, theta) / config.factor
