"""NTK-aware interpolation: the base grows so that the slowest pair is slowed by the factor and the fastest not at all.

    theta' = theta * s^(d / (d - 2)),   inv_freq[j] = theta'^(-2j / d),   s = target_len / train_len,   d = head_dim

The last pair, j = d/2 - 1, turns s times slower; pair 0 turns as before.

Source: bloc97 2023; papers/string.txt section 4 (baseline). papers/entropy_abf.txt prints the base without s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.errors import ConfigError
from lab.positions import rope
from lab.positions.base import Extension

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ntk(Extension):
    """NTK-aware interpolation's parameters."""

    method: Literal["ntk"] = "ntk"


Config = Ntk


def scaled_theta(theta: float, factor: float, head_dim: int) -> float:
    """Compute theta * factor^(d / (d - 2)).

    Raises: ConfigError for a head of one pair, which has no slowest pair beside the fastest.
    Example:
        >>> round(scaled_theta(10000.0, 8.0, head_dim=8), 6)
        160000.0
    """
    if head_dim < 4:
        raise ConfigError(f"head_dim={head_dim}: must be >= 4 (the base grows by s^(d / (d - 2))); use method: pi")
    return theta * float(factor ** (head_dim / (head_dim - 2)))


def inv_freq(config: Ntk, head_dim: int, theta: float) -> Tensor:
    """Compute RoPE's inverse frequencies at the larger base.

    Shapes: float64 (head_dim / 2,).
    """
    return rope.inv_freq(rope.Rope(), head_dim, scaled_theta(theta, config.factor, head_dim))
