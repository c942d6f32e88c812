"""Adjusted base frequency: RoPE with a larger base, so that rotations over long distances are slower.

    inv_freq[j] = theta^(-2j / head_dim),   theta = 500,000 instead of 10,000

Source: Xiong et al. 2023, arXiv:2309.16039; arXiv:2401.07004, section 3.

Entropy-aware ABF: the same base, and logits that grow with the logarithm of the number of visible tokens.

    logit_factor(p) = max(1, ln(p + 1) / ln L)  in layers 2 and up, 1 in layers 0 and 1

p is the 0-based position of the query, which sees p + 1 tokens, and L the pretraining length (`train_len`): beyond L,
attention entropy then stays at the level of training.

Source: arXiv:2401.07004, section 3; one sentence there has 50,000, its Table 1 and the code 500,000. In the released
code the exemption of the first layers never takes effect and the length is 4096 for every model; the exemption here
takes effect, and `exempt_layers=0` is the code's behaviour.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from lab.core.schema import NonNegative, PositiveFloat
from lab.positions.method import FrequencyMethod, Tensor
from lab.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class AdjustedBase(FrequencyMethod):
    """The base and inverse frequencies that ABF and entropy-aware ABF share."""

    theta: PositiveFloat = 500_000.0
    """Rotary base, which replaces the model's own and must be larger."""

    def base(self, theta: float) -> float:
        return self.theta

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute RoPE's inverse frequencies at the base in use: float64 (head_dim / 2,)."""
        return Rope().inv_freq(head_dim, theta)


@dataclass(frozen=True, kw_only=True)
class Abf(AdjustedBase):
    """The adjusted base."""

    method: Literal["abf"] = "abf"


@dataclass(frozen=True, kw_only=True)
class EntropyAbf(AdjustedBase):
    """Entropy-aware ABF's parameters."""

    scales_logits: ClassVar[bool] = True
    method: Literal["entropy_abf"] = "entropy_abf"
    train_len: Annotated[int, Ge(2)]
    """Pretraining length L in tokens, at least 2; queries that see more are sharpened by ln(p + 1) / ln L."""
    exempt_layers: NonNegative = 2
    """First layers whose logits are not scaled; the paper exempts 2."""

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Compute the factor of queries in one layer, float64 like `q_pos`.

        Example:
            >>> import torch
            >>> EntropyAbf(train_len=16).logit_factor(torch.tensor([0, 15, 255]), layer=2).tolist()
            [1.0, 1.0, 2.0]
            >>> EntropyAbf(train_len=16).logit_factor(torch.tensor([255]), layer=1).tolist()
            [1.0]
        """
        if layer < self.exempt_layers:
            return q_pos.double() * 0 + 1
        return ((q_pos.double() + 1).log() / math.log(self.train_len)).clamp(min=1.0)
