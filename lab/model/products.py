"""Matrix products on a CPU by the way that is fastest on its processor; on other devices they are torch's own.

float32. torch multiplies with MKL, which uses half the vector width of processors with AVX-512 by other vendors than
Intel. There oneDNN computes a layer's output and the gradient of its input; the gradient of its weight, for which
oneDNN would have to transpose both matrices, stays with MKL. GFLOP/s of one thread, 4,096 tokens, 256 to 704 features:

    processor, oneDNN / MKL      output     input's gradient   weight's gradient
    AMD EPYC without AVX-512     81 / 81    74 / 81            63 / 88
    AMD EPYC, Zen 4              98 / 89    not measured       not measured
    AMD EPYC with AVX-512        240 / 105  not measured       not measured

bfloat16. Without AVX-512 oneDNN has no kernels for it, and torch multiplies at 8 GFLOP/s. There the rounded values are
multiplied in float32 and the sums and gradients rounded once, which is what a kernel for bfloat16 computes. Attention
runs in float32 there.

The choice follows from the processor alone, so that a resumed run makes the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAST_PRODUCTS = 1 << 20  # below this many multiplications the overhead of oneDNN exceeds what it saves, measured


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, on: Processor) -> Tensor:
    """Compute x W^T + b, with gradients.

    Shapes: x (..., in), weight (out, in), bias (out,) -> (..., out).
    """
    dtype = compute_dtype(x)
    if x.device.type != "cpu" or not {type(x), type(weight)} <= {Tensor, nn.Parameter}:
        return F.linear(x, weight, bias)
    if dtype == torch.bfloat16 and not on.bfloat16:
        with torch.autocast("cpu", enabled=False):
            bias = None if bias is None else bias.bfloat16().float()
            return F.linear(x.bfloat16().float(), weight.bfloat16().float(), bias).bfloat16()
    large = x.numel() * weight.shape[0] >= LEAST_PRODUCTS
    if dtype == torch.float32 and on.onednn and large and not torch.compiler.is_compiling():
        out: Tensor = OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out
    return F.linear(x, weight, bias)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Compute a b for matrices of one dtype, without a gradient; for oneDNN a must not be transposed."""
    if a.device.type == "cpu" and a.dtype == torch.bfloat16 and not processor().bfloat16:
        return (a.float() @ b.float()).to(a.dtype)
    if a.device.type == "cpu" and a.dtype == torch.float32 and processor().onednn and a.is_contiguous():
        out: Tensor = onednn().default(a, b.T, None, "none", [], "")
        return out
    return a @ b


def describe(dtype: torch.dtype) -> str:
    """Name the way that a run on this CPU multiplies."""
    if dtype == torch.bfloat16 and not processor().bfloat16:
        return "products: bfloat16 values in float32, as this processor has no instructions for bfloat16"
    return f"products: {'oneDNN' if dtype == torch.bfloat16 or processor().onednn else 'MKL'}"


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that a product with x computes in, under autocast or without."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


@dataclass(frozen=True)
class Processor:
    """What is fast on this processor."""

    bfloat16: bool
    """oneDNN has kernels for bfloat16."""
    onednn: bool
    """oneDNN multiplies float32 faster than MKL."""


@cache
def processor() -> Processor:
    """Ask torch; a layer keeps the answer, as torch.compile cannot ask."""
    has_bfloat16 = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return Processor(has_bfloat16, onednn() is not None and wide and not is_intel())


def is_intel() -> bool:
    """Return whether the processor is by Intel, as far as the system says; so where it says nothing."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True


@cache
def onednn() -> Any:
    """Return torch's linear operator on oneDNN, which torch.compile uses; None where torch was built without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class OneDnnLinear(torch.autograd.Function):
    """A linear layer in float32, the gradient of W by MKL."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x W^T + b."""
        ctx.save_for_backward(x, weight)
        out: Tensor = onednn().default(x, weight, bias, "none", [], "")
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Multiply the gradient with the weight, as a layer whose weight is transposed, and with the input."""
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            onednn().default(grad, weight.T, None, "none", [], "") if wants_x else None,
            rows.T @ x.flatten(0, -2) if wants_weight else None,
            rows.sum(0) if wants_bias else None,
        )


class Linear(nn.Linear):
    """x W^T + b."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.processor = processor()

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to every token."""
        return linear(input, self.weight, self.bias, self.processor)
