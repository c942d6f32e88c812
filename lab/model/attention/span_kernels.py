"""Kernels that attend within spans and also return the log-sum-exp of the logits, in nats.

They run contiguous spans of queries and keys, compute logits in float32 or wider without storing them, and take the
output and the log-sum-exp of complete rows in their backward pass, so that the bands of a distance method can be merged
outside. Causal spans align the last query with the last key. torch's public functions return no log-sum-exp, so that
its operators are called directly.

Axes: T tokens, N heads, K key-value heads, H per head, S spans. Query head n reads key-value head n // (N / K).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from lab.model.attention import devices
from lab.model.attention.segments import Spans

HALF = (torch.float16, torch.bfloat16)
WIDEST_HEAD = 256  # flash attention's limit
HEAD_MULTIPLE = 8  # both GPU kernels need head_dim to be divisible by this, in every dtype
LSE_MULTIPLE = 32  # the efficient kernel pads its log-sum-exp to this
UNMASKED, LOWER_RIGHT = 0, 2  # the efficient kernel's numbers for its masks


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
        mask = LOWER_RIGHT if spans.causal else UNMASKED
        out, lse, *_ = torch.ops.aten._efficient_attention_forward(
            q[None], repeated(k, q)[None], repeated(v, q)[None], None, *spans.arguments, 0.0, mask, True
        )
        span, place = spans.places
        return out[0], lse[span, :, place].T

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Call the kernel, which reads output and gradient in the dtype of q, and add up the heads of each group."""
        span, place = spans.places
        longest = spans.max_q + -spans.max_q % LSE_MULTIPLE
        padded = lse.new_full((spans.n, lse.shape[0], longest), torch.inf)
        padded[span, :, place] = lse.T
        mask = LOWER_RIGHT if spans.causal else UNMASKED
        unused = torch.zeros((), dtype=torch.int64, device=q.device)  # a random state for dropout
        rows = [x[None] for x in (grad.to(q.dtype).contiguous(), q, repeated(k, q), repeated(v, q))]
        out = out.to(q.dtype).contiguous()[None]
        dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
            *rows, None, out, *spans.arguments, padded, 0.0, unused, unused, mask, False
        )
        return dq[0], *(x[0].unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))


def repeated(x: Tensor, q: Tensor) -> Tensor:
    """Repeat key-value heads (T, K, H) for all heads of q (T, N, H)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


class CpuFlash:
    """Torch's flash attention for CPUs, which runs one span at a time, or any number of spans of one length."""

    windows: ClassVar[bool] = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Attend; heads of one group become rows of one head where all rows see the same keys."""
        outs, lses = [], []
        k, v = (repeated(x, q) if spans.causal else x for x in (k, v))
        for q_part, k_part, v_part in batches(spans, (q,), (k, v)):
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                stacked(q_part, k_part), k_part, v_part, 0.0, spans.causal
            )
            outs.append(joined(out.reshape(q_part.shape)))
            lses.append(joined(lse.reshape(q_part.shape[:3])))
        return torch.cat(outs), torch.cat(lses).T

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernel's own backward pass with the output and log-sum-exp of the whole rows."""
        found = []
        kv_heads = k.shape[1]
        k, v = (repeated(x, q) if spans.causal else x for x in (k, v))
        for *rows, lse_part, k_part, v_part in batches(spans, (grad, q, out, lse.T), (k, v)):
            q_shape = rows[1].shape
            grad_rows, q_rows, out_rows = (stacked(x, k_part) for x in rows)
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_rows, q_rows, k_part, v_part, out_rows, lse_part.reshape(q_rows.shape[:3]), 0.0, spans.causal
            )
            found.append([joined(x) for x in (dq.reshape(q_shape), dk, dv)])
        dq, dk, dv = (torch.cat(parts) for parts in zip(*found, strict=True))
        return dq, *(x.unflatten(1, (kv_heads, -1)).sum(2) for x in (dk, dv))


def batches(spans: Spans, of_queries: tuple[Tensor, ...], of_keys: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors (T, N, ...) into spans (1, N, n, ...), or, all of one length, into a batch of them (S, N, n, ...)."""
    q_lengths, k_lengths = spans.q_lengths, spans.k_lengths
    if len({*zip(q_lengths, k_lengths, strict=True)}) == 1:
        yield tuple(x.unflatten(0, (spans.n, -1)).transpose(1, 2) for x in (*of_queries, *of_keys))
        return
    parts = [x.split(q_lengths) for x in of_queries] + [x.split(k_lengths) for x in of_keys]
    yield from (tuple(x[None].transpose(1, 2) for x in span) for span in zip(*parts, strict=True))


def stacked(x: Tensor, k: Tensor) -> Tensor:
    """Stack the heads of a group as rows of one head: (S, N, T, H) to (S, K, N / K * T, H)."""
    return x if x.shape[1] == k.shape[1] else x.unflatten(1, (k.shape[1], -1)).flatten(2, 3)


def joined(x: Tensor) -> Tensor:
    """Join the spans of a batch, (S, N, n, ...) to (S * n, N, ...)."""
    rows: Tensor = x.transpose(1, 2).flatten(0, 1)
    return rows


SpanKernel = Flash | Efficient | CpuFlash
"""Attention within spans and its gradient; `windows` holds if the spans may have a window.

`forward` returns the output (T, N, H) and the log-sum-exp (N, T). `backward` takes the gradient, q, k, v, the whole
rows' output and log-sum-exp, and returns the gradients of q, k and v.
"""
