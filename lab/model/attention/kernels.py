"""Kernels that attend within one tile and also return the log-sum-exp of the logits.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Query head n reads key-value head n // (N / K). A
causal tile is square, and query r sees keys 0 to r; otherwise every query sees every key. Logits are q.k / sqrt(H).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

SCORE_ELEMENTS = 1 << 25  # logits that the matmul kernel stores at a time


class TileKernel(Protocol):
    """Attention within a tile and its gradient."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Return the output (B, N, n, H) and the log-sum-exp (B, N, n)."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v, given the output and the log-sum-exp of the whole rows."""
        ...


class Matmul:
    """Plain matrix products in float32 or wider, for any device and dtype, in row blocks of bounded memory."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Attend block by block."""
        wide = torch.promote_types(v.dtype, torch.float32)
        k_KTH, v_KTH = (x[:, :, None].to(wide) for x in (k, v))
        outs, lses = [], []
        for rows in blocks(q, k):
            scores = self.scores(grouped(q, k)[:, :, :, rows].to(wide), k_KTH, rows, causal)
            lse = scores.logsumexp(-1)
            outs.append((scores - lse[..., None]).exp() @ v_KTH)
            lses.append(lse)
        return torch.cat(outs, dim=3).flatten(1, 2), torch.cat(lses, dim=3).flatten(1, 2)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Recompute the weights w = exp(logit - lse); with g = grad, dv = w^T g and dlogit = w (g v^T - g . out)."""
        k_wide, v_wide = (x[:, :, None].to(out.dtype) for x in (k, v))
        dk, dv = torch.zeros_like(k_wide[:, :, 0]), torch.zeros_like(v_wide[:, :, 0])
        dqs = []
        for rows in blocks(q, k):
            q_part, grad_part, out_part = (grouped(x, k)[:, :, :, rows].to(out.dtype) for x in (q, grad, out))
            lse_part = lse.unflatten(1, (k.shape[1], -1))[:, :, :, rows]
            weights = (self.scores(q_part, k_wide, rows, causal) - lse_part[..., None]).exp()
            dv += (weights.transpose(-1, -2) @ grad_part).sum(2)
            dots = (grad_part * out_part).sum(-1, keepdim=True)
            dlogits = weights * (grad_part @ v_wide.transpose(-1, -2) - dots) / math.sqrt(q.shape[-1])
            dqs.append(dlogits @ k_wide)
            dk += (dlogits.transpose(-1, -2) @ q_part).sum(2)
        return torch.cat(dqs, dim=3).flatten(1, 2), dk, dv

    def scores(self, q: Tensor, k: Tensor, rows: slice, causal: bool) -> Tensor:
        """Compute the logits of a block of rows, (B, K, G, rows, n_k), in float32 or wider, from such inputs."""
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if not causal:
            return scores
        columns = torch.arange(k.shape[-2], device=q.device)
        hidden = columns > columns[rows, None]
        return scores.masked_fill(hidden, -torch.inf)


def blocks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Cut the rows so that the logits of a block stay within SCORE_ELEMENTS."""
    rows = max(1, SCORE_ELEMENTS // (q.shape[0] * q.shape[1] * k.shape[2]))
    for start in range(0, q.shape[2], rows):
        yield slice(start, min(start + rows, q.shape[2]))


def grouped(x: Tensor, k: Tensor) -> Tensor:
    """Group query heads by the key-value head they read: (B, N, T, H) to (B, K, N / K, T, H)."""
    groups: Tensor = x.unflatten(1, (k.shape[1], -1))
    return groups


class CpuFlash:
    """Torch's flash attention for CPUs, the kernel below scaled_dot_product_attention, which returns no log-sum-exp."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Attend; heads of one group become rows of one head where all rows see the same keys."""
        k, v = (self.shared(x, q, causal) for x in (k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(self.rows(q, k), k, v, 0.0, causal)
        return out.reshape(q.shape), lse.reshape(q.shape[:3])

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernel's own backward pass with the output and log-sum-exp of the whole rows."""
        kv_shape = k.shape
        k, v = (self.shared(x, q, causal) for x in (k, v))
        q_rows, grad_rows, out_rows = (self.rows(x, k) for x in (q, grad, out))
        lse_rows = lse.reshape(q_rows.shape[:3])
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_rows, q_rows, k, v, out_rows, lse_rows, 0.0, causal
        )
        dk, dv = (x.unflatten(1, (kv_shape[1], -1)).sum(2) for x in (dk, dv))
        return dq.reshape(q.shape), dk, dv

    def shared(self, x: Tensor, q: Tensor, causal: bool) -> Tensor:
        """Repeat key-value heads for a causal tile, whose rows cannot be stacked."""
        return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) if causal and q.shape[1] != x.shape[1] else x

    def rows(self, x: Tensor, k: Tensor) -> Tensor:
        """Stack the heads of a group as rows of one head: (B, N, T, H) to (B, K, N / K * T, H)."""
        return x if x.shape[1] == k.shape[1] else grouped(x, k).flatten(2, 3)
