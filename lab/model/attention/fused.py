"""Fused CUDA attention kernels, called directly because torch's public functions return no log-sum-exp.

Both run contiguous spans of queries and keys, compute logits in float32 without storing them, and take the output and
the log-sum-exp of complete rows in their backward pass, so that the bands of a distance method can be merged outside.
Causal spans align the last query with the last key. The log-sum-exp is in nats.

Axes: T tokens, N heads, K key-value heads, H per head, S spans. Query head n reads key-value head n // (N / K).
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from lab.model.attention import devices
from lab.model.attention.segments import Spans

HALF = (torch.float16, torch.bfloat16)
WIDEST_HEAD = 256  # flash attention's limit
HEAD_MULTIPLE = 8  # both kernels need head_dim to be divisible by this, in every dtype
LSE_MULTIPLE = 32  # the efficient kernel pads its log-sum-exp to this
UNMASKED, LOWER_RIGHT = 0, 2  # the efficient kernel's numbers for its masks


class FusedKernel(Protocol):
    """Attention within spans and its gradient; `windows` holds if the spans may have a window."""

    windows: ClassVar[bool]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Return the output (T, N, H) and the log-sum-exp (N, T)."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v, given the output and the log-sum-exp of the whole rows."""
        ...


def suits(v: Tensor) -> bool:
    """Return whether the efficient kernel runs such tensors, (..., H), and in half precision flash attention too.

    Flash attention takes no head wider than WIDEST_HEAD.
    """
    on_gpu = devices.kind(v.device) == "cuda"
    return on_gpu and v.dtype in (*HALF, torch.float32) and v.shape[-1] % HEAD_MULTIPLE == 0


class Flash:
    """Torch's own flash attention, for float16 and bfloat16."""

    windows: ClassVar[bool] = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Call the kernel."""
        options = (*spans.arguments, 0.0, spans.causal, False)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *options, window_size_left=before(spans))
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Call the kernel, which reads the log-sum-exp as contiguous float32 whatever its strides are."""
        grad, out = grad.to(q.dtype), out.to(q.dtype)
        unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # a random state for dropout
        options = (*spans.arguments, 0.0, spans.causal, unused, unused)
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, lse.contiguous(), *options, window_size_left=before(spans)
        )
        return grads


def before(spans: Spans) -> int:
    """Return how many keys before its own a query sees, -1 for all, as flash attention takes it."""
    return -1 if spans.window is None else spans.window - 1


class Efficient:
    """Torch's memory-efficient attention, for float32 too; it has no grouped heads."""

    windows: ClassVar[bool] = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Call the kernel, and read the log-sum-exp (S, N, padded length) token by token."""
        out, lse = efficient_forward(q, repeated(k, q), repeated(v, q), spans)
        span, place = spans.places
        return out, lse[span, :, place].T

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Call the kernel, which reads the output and its gradient in the dtype of q."""
        grad, out = grad.to(q.dtype), out.to(q.dtype)
        span, place = spans.places
        longest = spans.max_q + -spans.max_q % LSE_MULTIPLE
        padded = lse.new_full((spans.n, lse.shape[0], longest), torch.inf)
        padded[span, :, place] = lse.T
        return efficient_backward(grad, q, k, v, out, padded, spans)


def efficient_forward(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """Call the kernel on one row of spans, with as many key-value heads as heads.

    Shapes: q (Tq, N, H); k, v (Tk, N, H); returns (Tq, N, H) and (S, N, padded length).
    """
    mask = LOWER_RIGHT if spans.causal else UNMASKED
    out, lse, *_ = torch.ops.aten._efficient_attention_forward(
        q[None], k[None], v[None], None, *spans.arguments, 0.0, mask, True
    )
    return out[0], lse


def efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the kernel's backward pass and add up the key-value heads that were repeated.

    Shapes: grad, q, out (Tq, N, H); k, v (Tk, K, H); lse (S, N, padded length).
    """
    mask = LOWER_RIGHT if spans.causal else UNMASKED
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # a random state for dropout
    rows = [x[None] for x in (grad.contiguous(), q, repeated(k, q), repeated(v, q))]
    dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
        *rows, None, out.contiguous()[None], *spans.arguments, lse, 0.0, unused, unused, mask, False
    )
    return dq[0], *(x[0].unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))


def repeated(x: Tensor, q: Tensor) -> Tensor:
    """Repeat key-value heads (T, K, H) for all heads of q (T, N, H)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


class EfficientSpans(torch.autograd.Function):
    """Causal memory-efficient attention over spans, with its gradient.

    The operator's own autograd formula passes a longest key span of 0, which its backward pass rejects.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        """Attend. Shapes: q (Tq, N, H); k, v (Tk, K, H); returns (Tq, N, H)."""
        out, lse = efficient_forward(q, repeated(k, q), repeated(v, q), spans)
        ctx.spans = spans
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Run the kernel's backward pass."""
        q, k, v, out, lse = ctx.saved_tensors
        return *efficient_backward(grads[0], q, k, v, out, lse, ctx.spans), None
