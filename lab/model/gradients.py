"""Layers on a CPU with their backward passes written out: fewer passes through memory than autograd records.

torch.compile fuses the plain equations itself, so these are not used in what it compiles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDE = (torch.float32, torch.float64)


def rms_norm(x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    """Compute w * x / sqrt(mean(x^2) + eps) over the last axis.

    Shapes: x (..., D), weight (D,) -> (..., D).
    """
    if eps is None or not suits(x, weight):
        return F.rms_norm(x, weight.shape, weight, eps)
    out: Tensor = Norm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def suits(*tensors: Tensor) -> bool:
    """Return whether a layer of these is faster with its backward pass written out: plain, on a CPU, not compiled."""
    plain = all(type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" and x.dtype in WIDE for x in tensors)
    return plain and not torch.compiler.is_compiling()


def normalized(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute w * x * s and s = 1 / sqrt(mean(x^2) + eps), in six operations where torch takes eight.

    Shapes: x (..., D), weight (D,) -> (..., D) and (..., 1).
    """
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).mul_(weight), scale


class Norm(torch.autograd.Function):
    """y = w * x * s with s = 1 / sqrt(mean(x^2) + eps); for the gradient g of y

    dx = s * (g * w) - x * s^3 * mean(g * w * x),    dw = sum over tokens of g * x * s.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise every token; keep its scale."""
        out, scale = normalized(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Sum over the tokens and over the features by products of a matrix and a vector."""
        x, weight, scale = ctx.saved_tensors
        products = (grad * x).flatten(0, -2)
        grad_weight = scale.flatten() @ products
        mean = (products @ weight).view_as(scale).div_(-x.shape[-1])
        grad_x = (grad * weight).mul_(scale).addcmul_(x, mean.mul_(scale.pow(3)))
        return grad_x, grad_weight, None
