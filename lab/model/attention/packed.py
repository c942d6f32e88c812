"""Attention within the spans of a packed row on a CPU, as one operation in the graph of a compiled block.

The spans differ from pack to pack, so the compiler does not look inside. Each runs torch's flash kernel for CPUs; the
query heads of a group are heads of one batch entry and read its keys through a stride of 0, so none is repeated.
torch keeps compiled graphs on disk by the names of their operations: new shapes of results need new names.
Axes: T tokens, N heads, K key-value heads, G = N / K, H per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def packed_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Any) -> Tensor:
    """Attend as the variable-length kernels of GPUs do: (T, N, H) and (Tk, K, H) -> (T, N, H)."""
    cu_q, cu_k, *_ = spans.arguments
    out: Tensor = attend_spans(q, k, v, cu_q, cu_k)[0]
    return out


@torch.library.custom_op("probe_lab::packed_attention", mutates_args=(), device_types="cpu")
def attend_spans(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (T, N, H) and log-sum-exp (K, G, T); a span has a key for every query, or an anchor more."""
    out, lse = results(q, k, v, cu_q, cu_k)
    queries = zip(*split(cu_q, *by_group(k, q, out), lse), strict=True)
    keys = zip(*split(cu_k, *repeated(q, k, v)), strict=True)
    for (q_part, out_part, lse_part), (k_part, v_part) in zip(queries, keys, strict=True):
        parts = KERNEL(q_part, k_part, v_part, 0.0, **mask(q_part, k_part))
        out_part.copy_(parts[0])
        lse_part.copy_(parts[1])
    return out, lse


@attend_spans.register_fake
def results(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the results."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty(k.shape[1], q.shape[1] // k.shape[1], q.shape[0], dtype=wide)


@torch.library.custom_op("probe_lab::packed_attention_backward", mutates_args=(), device_types="cpu")
def attend_spans_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, those of keys and values summed over the heads of a group."""
    dq, dk, dv = gradients(grad, q, k, v, out, lse, cu_q, cu_k)
    queries = zip(*split(cu_q, *by_group(k, dq, grad, q, out), lse), strict=True)
    keys = zip(*split(cu_k, *by_group(k, dk, dv), *repeated(q, k, v)), strict=True)
    for (dq_part, grad_part, q_part, *saved), (dk_part, dv_part, k_part, v_part) in zip(queries, keys, strict=True):
        parts = BACKWARD(grad_part, q_part, k_part, v_part, *saved, 0.0, **mask(q_part, k_part))
        dq_part.copy_(parts[0])
        torch.sum(parts[1], 1, keepdim=True, out=dk_part)
        torch.sum(parts[2], 1, keepdim=True, out=dv_part)
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


def by_group(k: Tensor, *tensors: Tensor) -> list[Tensor]:
    """View tensors (T, N, H) as (K, G, T, H)."""
    return [x.unflatten(1, (k.shape[1], -1)).permute(1, 2, 0, 3) for x in tensors]


def repeated(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """View keys and values as (K, G, Tk, H), one for every query head, without copying them."""
    return [x.expand(-1, q.shape[1] // k.shape[1], -1, -1) for x in by_group(k, k, v)]


def split(cu: Tensor, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Split tensors (K, G, T, ...) into their spans."""
    sizes = cu.diff().tolist()
    return [x.split(sizes, dim=2) for x in tensors]


def mask(q: Tensor, k: Tensor) -> dict[str, Any]:
    """Let a span's queries see the keys up to their own, the last query aligned with the last key."""
    n_q, n_k = q.shape[2], k.shape[2]
    if n_q == n_k:
        return {"is_causal": True}
    hidden = torch.full((n_q, n_k), -torch.inf, dtype=q.dtype).triu_(n_k - n_q + 1)
    return {"is_causal": False, "attn_mask": hidden}
