"""YaRN: NTK-by-parts, and logits sharpened by the logarithm of the factor.

    inv_freq      as in ntk_by_parts.py
    logit_factor  a^2 with a = 0.1 ln s + 1,   s = target_len / train_len

Source: Peng et al. 2023, arXiv:2309.00071, Eq. 15 (there sqrt(1/t) = a multiplies cos and sin, so that q.k is
multiplied twice); a baseline of arXiv:2410.18745 and arXiv:2401.07004.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from lab.positions.method import Tensor
from lab.positions.ntk_by_parts import Parts
from lab.schema import PositiveFloat


@dataclass(frozen=True, kw_only=True)
class Yarn(Parts):
    """YaRN's parameters."""

    scales_logits: ClassVar[bool] = True
    method: Literal["yarn"] = "yarn"
    attention_factor: PositiveFloat | None = None
    """Factor a on cos and sin, whose square multiplies the logits; left out, 0.1 ln s + 1."""

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Return the constant factor on the logits, float64 like `q_pos`.

        Example:
            >>> import torch
            >>> round(float(Yarn(factor=8.0, train_len=2048).logit_factor(torch.tensor([0]), 0)), 6)
            1.459129
        """
        a = 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor
        return q_pos.double() * 0 + float(a) ** 2
