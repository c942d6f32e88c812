"""RMSNorm with fewer operations where no gradient is asked for.

    out = w * x / sqrt(mean(x^2) + eps), the mean over the D features of a token.

Source: arXiv:2410.18745, A.2, whose model has it from Llama.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDE = (torch.float32, torch.float64)


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm`; on a CPU torch composes it of eight operations, of which passes without gradients need six."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale every token to a root mean square of one, then every feature by its weight.

        Shapes: x (..., D) -> (..., D).
        """
        eps, width = self.eps, x.shape[-1]
        if torch.is_grad_enabled() or x.device.type != "cpu" or x.dtype not in WIDE or eps is None:
            out: Tensor = super().forward(x)
            return out
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(width).add_(eps).rsqrt_()
        return (x * scale).mul_(self.weight)
