"""YaRN: NTK-by-parts, and logits sharpened by the logarithm of the factor.

    inv_freq      as in ntk_by_parts.py
    logit_factor  a^2 with a = 0.1 ln s + 1,   s = target_len / train_len

Source: Peng et al. 2023, Eq. 15 (there sqrt(1/t) = a multiplies cos and sin, so that q.k is multiplied twice); a
baseline of papers/string.txt and papers/entropy_abf.txt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions import ntk_by_parts
from lab.schema import PositiveFloat

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Yarn(ntk_by_parts.Parts):
    """YaRN's parameters."""

    method: Literal["yarn"] = "yarn"
    attention_factor: PositiveFloat | None = None
    """Factor a on cos and sin, whose square multiplies the logits; left out, 0.1 ln s + 1."""


Config = Yarn


def inv_freq(config: Yarn, head_dim: int, theta: float) -> Tensor:
    """Compute those of NTK-by-parts.

    Shapes: float64 (head_dim / 2,).
    """
    return ntk_by_parts.inv_freq(config, head_dim, theta)


def logit_factor(config: Yarn, q_pos: Tensor, layer: int) -> Tensor:
    """Return the constant factor on the logits.

    Shapes: float64 like `q_pos`.
    Example:
        >>> import torch
        >>> round(float(logit_factor(Yarn(factor=8.0, train_len=2048), torch.tensor([0]), 0)), 6)
        1.459129
    """
    a = 0.1 * math.log(config.factor) + 1 if config.attention_factor is None else config.attention_factor
    return q_pos.double() * 0 + float(a) ** 2
