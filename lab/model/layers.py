"""The decoder's layers besides attention (arXiv:2410.18745, A.2)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from lab.model import products
from lab.model.config import DecoderConfig


class Linear(nn.Linear):
    """x W^T + b."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.processor = products.processor()

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to every token."""
        return products.linear(input, self.weight, self.bias, self.processor)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.gate = Linear(cfg.d_model, cfg.d_ff, bias=False)
        self.up = Linear(cfg.d_model, cfg.d_ff, bias=False)
        self.out = Linear(cfg.d_ff, cfg.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply the layer to every token."""
        out: Tensor = self.out(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return out
