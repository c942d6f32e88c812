"""Attention within the spans of a packed row on a CPU, as one operation in the graph of a compiled block.

The spans differ from pack to pack, so the compiler does not look inside. Each runs torch's flash kernel for CPUs; the
query heads of a group are heads of one batch entry and read its keys through a stride of 0, so none is repeated.
Axes: T tokens, N heads, K key-value heads, G = N / K, H per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def packed_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Any) -> Tensor:
    """Attend as the variable-length kernels of GPUs do: (T, N, H) and (Tk, K, H) -> (T, N, H)."""
    cu_q, cu_k, *_ = spans.arguments
    return attend_spans(q, k, v, cu_q, cu_k)[0]


@torch.library.custom_op("lab::attend_spans", mutates_args=(), device_types="cpu")
def attend_spans(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (T, N, H) and the log-sum-exp (N, T); a span has as many keys as queries, or an anchor more."""
    out, lse = results(q, k, v, cu_q, cu_k)
    for rows, keys, masked in runs(cu_q, cu_k, q.dtype):
        part, part_lse = KERNEL(*grouped(q[rows], k[keys], v[keys]), 0.0, **masked)
        out[rows], lse[:, rows] = tokens_first(part), part_lse.flatten(0, 1)
    return out, lse


@attend_spans.register_fake
def results(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the results."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=wide)


@torch.library.custom_op("lab::attend_spans_backward", mutates_args=(), device_types="cpu")
def attend_spans_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    dq, dk, dv = gradients(grad, q, k, v, out, lse, cu_q, cu_k)
    for rows, keys, masked in runs(cu_q, cu_k, q.dtype):
        q_part, k_part, v_part = grouped(q[rows], k[keys], v[keys])
        grad_part, out_part = (by_group(x[rows], k.shape[1]) for x in (grad, out))
        lse_part = lse[:, rows].unflatten(0, (k.shape[1], -1))
        parts = BACKWARD(grad_part, q_part, k_part, v_part, out_part, lse_part, 0.0, **masked)
        dq[rows] = tokens_first(parts[0])
        dk[keys], dv[keys] = (part.sum(1).transpose(0, 1) for part in parts[1:])
    return dq, dk, dv


@attend_spans_backward.register_fake
def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the gradients."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the backward pass reads."""
    q, k, v, cu_q, cu_k = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k)
    ctx.mark_non_differentiable(output[1])


def differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate the output."""
    return *attend_spans_backward(grad, *ctx.saved_tensors), None, None


attend_spans.register_autograd(differentiate, setup_context=save)


def runs(cu_q: Tensor, cu_k: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, slice, dict[str, Any]]]:
    """Yield each span's queries, its keys, and the kernel's mask: causal, the last query aligned with the last key."""
    for (start, stop), (first, last) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        n_q, n_k = stop - start, last - first
        masked: dict[str, Any] = {"is_causal": True}
        if n_q != n_k:
            hidden = torch.full((n_q, n_k), -torch.inf, dtype=dtype).triu_(n_k - n_q + 1)
            masked = {"is_causal": False, "attn_mask": hidden}
        if n_q:
            yield slice(start, stop), slice(first, last), masked


def grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Arrange a span's heads as (K, G, tokens, H), keys and values without copying them."""
    q_KGTH = by_group(q, k.shape[1])
    return q_KGTH, *(by_group(x, k.shape[1]).expand(-1, q_KGTH.shape[1], -1, -1) for x in (k, v))


def by_group(x: Tensor, n_groups: int) -> Tensor:
    """View (T, N, H) as (K, G, T, H)."""
    groups: Tensor = x.unflatten(1, (n_groups, -1))
    return groups.permute(1, 2, 0, 3)


def tokens_first(x_KGTH: Tensor) -> Tensor:
    """Arrange (K, G, T, H) as (T, N, H)."""
    return x_KGTH.permute(2, 0, 1, 3).flatten(1, 2)
