"""RoPE: rotary position embedding, on which all other frequency methods build.

    inv_freq[j] = theta^(-2j / head_dim),   j = 0 .. head_dim/2 - 1,   in radians per token

Dimensions j and j + head_dim/2 form the pair that is rotated by position * inv_freq[j] (half-split pairing, used in the
whole project). Source: Su et al. 2021, arXiv:2104.09864; arXiv:2410.18745, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions.frequency_method import FrequencyMethod

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rope(FrequencyMethod):
    """RoPE, which has no parameters except `model.theta`."""

    method: Literal["rope"] = "rope"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute the inverse frequencies.

        Shapes: float64 (head_dim / 2,).
        Example:
            >>> Rope().inv_freq(head_dim=4, theta=10000.0).tolist()
            [1.0, 0.01]
        """
        import torch

        j = torch.arange(head_dim // 2, dtype=torch.float64)
        return torch.tensor(theta, dtype=torch.float64) ** (-2.0 * j / head_dim)
