"""Entropy-aware ABF: a larger base, and logits that grow with the logarithm of what a query sees.

    inv_freq[j]      = theta^(-2j / head_dim),   theta = 500,000
    logit_factor(p)  = max(1, ln(p + 1) / ln L)  in layers 2 and up, 1 in layers 0 and 1

p is the 0-based position of the query, which sees p + 1 tokens, and L the pretraining length (`train_len`): attention
entropy then stays what training has seen beyond L.

Source: papers/entropy_abf.txt, section 3; one sentence there says 50,000, its Table 1 and the code 500,000. The
released code's exemption of the first layers never takes effect and its length is 4096 for every model; the exemption
here does, and `exempt_layers=0` is the code's behaviour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from lab.positions import rope
from lab.schema import NonNegative, PositiveFloat, Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EntropyAbf(Section):
    """Entropy-aware ABF's parameters."""

    method: Literal["entropy_abf"] = "entropy_abf"
    theta: PositiveFloat = 500_000.0
    """Rotary base, in place of the model's own; larger than it."""
    train_len: Annotated[int, Ge(2)]
    """Pretraining length L in tokens, at least 2; queries that see more are sharpened by ln(p + 1) / ln L."""
    exempt_layers: NonNegative = 2
    """First layers whose logits are left alone; the paper exempts 2."""


Config = EntropyAbf


def inv_freq(config: EntropyAbf, head_dim: int, theta: float) -> Tensor:
    """Compute RoPE's inverse frequencies at the adjusted base, which `theta` is.

    Shapes: float64 (head_dim / 2,).
    """
    return rope.inv_freq(rope.Rope(), head_dim, theta)


def logit_factor(config: EntropyAbf, q_pos: Tensor, layer: int) -> Tensor:
    """Compute the factor of queries in one layer.

    Shapes: float64 like `q_pos`.
    Example:
        >>> import torch
        >>> logit_factor(EntropyAbf(train_len=16), torch.tensor([0, 15, 255]), layer=2).tolist()
        [1.0, 1.0, 2.0]
        >>> logit_factor(EntropyAbf(train_len=16), torch.tensor([255]), layer=1).tolist()
        [1.0]
    """
    if layer < config.exempt_layers:
        return q_pos.double() * 0 + 1
    return ((q_pos.double() + 1).log() / math.log(config.train_len)).clamp(min=1.0)
