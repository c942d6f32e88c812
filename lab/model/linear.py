"""Linear layers that run on oneDNN where no gradient is asked for.

On a CPU torch multiplies float32 matrices with MKL, which uses half the vector width of processors that are not
Intel's; oneDNN asks the processor itself. On one core of an AMD EPYC with AVX-512: 240 against 105 GFLOP/s.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAST_PRODUCTS = 1 << 20  # for fewer multiplications the longer way into oneDNN costs more than it saves, measured
LEAST_WEIGHTS = 1 << 18  # so many come from memory, which oneDNN reads faster even for one token


class Linear(nn.Linear):
    """`nn.Linear`; passes without gradients may fuse silu, or the product with another tensor, into it."""

    def forward(self, input: Tensor, *, silu: bool = False, times: Tensor | None = None) -> Tensor:
        """Compute x W^T + b, then silu of that, or its product with `times`; either without gradients only.

        Shapes: input (..., in); times (..., out); returns (..., out).
        """
        if suits_onednn(input, self.weight):
            kernel = onednn()
            if times is not None:
                out: Tensor = kernel.binary(input, times, self.weight, self.bias, "mul")
            else:
                out = kernel.default(input, self.weight, self.bias, "swish" if silu else "none", [], "")
            return out
        out = F.linear(input, self.weight, self.bias)
        if silu or times is not None:
            assert not torch.is_grad_enabled(), "what is overwritten has no gradient"
            return F.silu(out, inplace=True) if times is None else out.mul_(times)
        return out


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Tell whether oneDNN can and should multiply: plain float32 tensors on a CPU, large enough, no gradient."""
    return (
        not torch.is_grad_enabled()
        and (x.numel() * weight.shape[0] >= LEAST_PRODUCTS or weight.numel() >= LEAST_WEIGHTS)
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
        and onednn() is not None
    )


@cache
def onednn() -> Any:
    """Find torch's linear layer by oneDNN, which torch.compile uses; None where torch was built without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
