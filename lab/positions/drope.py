"""DroPE: positions are dropped after training, and the model is trained on briefly without them.

    inv_freq[j] = 0     logit(m, n) = q_m . k_n / sqrt(head_dim), whatever m - n

A run with rope comes first. A second one starts from it with this method, at the same window, and recalibrates it
(`configs/extend_drope.yaml`). It then reads longer texts as it is: only the causal mask tells it the order of tokens.

Source: arXiv:2512.12167. Its released code replaces cos by 1 and sin by 0 in every layer. It can add norms of queries
and keys when it recalibrates; here a model has them from the beginning (model.qkv), or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions.method import FrequencyMethod

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Drope(FrequencyMethod):
    """DroPE, which has no parameters."""

    method: Literal["drope"] = "drope"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Return zeros, which turn nothing: float64 (head_dim / 2,)."""
        import torch

        return torch.zeros(head_dim // 2, dtype=torch.float64)
