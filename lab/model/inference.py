"""Layers for passes without gradients: the same equations in fewer operations, products by oneDNN where it is faster.

lab/model/products.py says where that is. Elsewhere MKL takes 0.6 to 1 of the time for 1 to 2,048 tokens and 512 to
4,096 features, and two thirds where oneDNN computes silu too (AMD EPYC without AVX-512, one thread).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.model import products
from lab.model.gradients import WIDE, normalized
from lab.model.products import large, onednn

Forward = Callable[[Any, Tensor], Tensor]
LEAST_WEIGHTS = 1 << 18  # weights of this size exceed the caches, and oneDNN reads them faster even for one token


def without_gradients(fast: Forward) -> Callable[[Forward], Forward]:
    """Run `fast` in place of a layer's forward pass wherever no gradient is recorded."""

    def choose(forward: Forward) -> Forward:
        @wraps(forward)
        def run(layer: Any, x: Tensor) -> Tensor:
            return forward(layer, x) if torch.is_grad_enabled() else fast(layer, x)

        return run

    return choose


def swiglu(layer: Any, x: Tensor) -> Tensor:
    """Compute out(silu(gate(x)) * up(x)), silu and its product with `up` each fused into a matrix product.

    Shapes: x (..., D) -> (..., D).
    """
    out: Tensor = layer.out(product(layer.up, x, times=product(layer.gate, x, silu=True)))
    return out


def rms_norm(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    """Compute w * x / sqrt(mean(x^2) + eps), on a CPU in fewer operations than torch.

    Shapes: x (..., D) -> (..., D).
    """
    if x.device.type != "cpu" or x.dtype not in WIDE or layer.eps is None:
        return F.rms_norm(x, layer.normalized_shape, layer.weight, layer.eps)
    return normalized(x, layer.weight, layer.eps)[0]


def product(layer: Any, x: Tensor, *, silu: bool = False, times: Tensor | None = None) -> Tensor:
    """Compute x W^T + b, then silu of that, or its product with `times`.

    Shapes: x (..., in); times (..., out); returns (..., out).
    """
    assert not torch.is_grad_enabled(), "results are overwritten in place, which has no gradient"
    if suits_onednn(x, layer.weight):
        kernel = onednn()
        if times is not None:
            out: Tensor = kernel.binary(x, times, layer.weight, layer.bias, "mul")
        else:
            out = kernel.default(x, layer.weight, layer.bias, "swish" if silu else "none", [], "")
        return out
    out = products.linear(x, layer.weight, layer.bias, layer.processor)
    if silu:
        return F.silu(out, inplace=True)
    return out if times is None else out.mul_(times)


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN can multiply these and is faster: plain float32 tensors on a CPU, large enough."""
    return (
        (large(x, weight) or weight.numel() >= LEAST_WEIGHTS)
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
        and products.processor().onednn
    )
