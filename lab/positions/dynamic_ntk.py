"""Dynamic NTK: the NTK-aware base for the length that is read, plain RoPE up to the trained length.

    theta' = theta * (s * l / L - (s - 1))^(d / (d - 2)),   l = max(length, L),   L = train_len,   d = head_dim

Source: emozilla 2023; papers/entropy_abf.txt section 2 (baseline). With `length` left out the decoder takes the number
of tokens it holds, and places all cached keys anew at every step; code that keeps rotated keys changes the past. A
packed row has no one length and takes L, so that no document depends on those beside it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions import rope
from lab.positions.base import Factor
from lab.positions.ntk import scaled_theta
from lab.schema import Positive, Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DynamicNtk(Section):
    """Dynamic NTK's parameters."""

    method: Literal["dynamic_ntk"] = "dynamic_ntk"
    factor: Factor
    """Factor s, at least 1; how fast the base grows with the length (transformers' name, s in the equation)."""
    train_len: Positive
    """Pretraining length L in tokens, up to which nothing changes."""
    length: Positive | None = None
    """Tokens that are read; left out, those the decoder holds, and L for `inv_freq` itself."""


Config = DynamicNtk


def inv_freq(config: DynamicNtk, head_dim: int, theta: float) -> Tensor:
    """Compute RoPE's inverse frequencies at the base for the length.

    Shapes: float64 (head_dim / 2,).
    Example:
        >>> two = DynamicNtk(factor=2.0, train_len=100, length=200)  # 2 * 200 / 100 - 1 = 3
        >>> round(float(inv_freq(two, head_dim=4, theta=10000.0)[1]), 9) == round((10000.0 * 3**2) ** -0.5, 9)
        True
    """
    length = max(config.length or 0, config.train_len)
    growth = 1 + config.factor * (length - config.train_len) / config.train_len  # exactly 1 up to the trained length
    return rope.inv_freq(rope.Rope(), head_dim, scaled_theta(theta, growth, head_dim))


def at_length(config: DynamicNtk, length: int) -> DynamicNtk:
    """Fix the length."""
    return dataclasses.replace(config, length=length)
