"""One transformer block, and its forward and backward pass compiled as one graph, or as two around attention.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, D model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lab.model import products
from lab.model.attention import attend, backends
from lab.model.attention.attend import attend_cached
from lab.model.attention.cache import KeyCache
from lab.model.attention.fixed import FixedRow
from lab.model.attention.layout import Layout
from lab.model.attention.packed import packed_kernel
from lab.model.attention.plan import plan_for
from lab.model.attention.rotary import Rotation
from lab.model.config import DecoderConfig
from lab.model.layers import FeedForward, Linear, together

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""
KERNELS = {"varlen": backends.varlen_kernel, "sdpa": packed_kernel}  # one operation of a graph each, sdpa on a CPU


class Attention(nn.Module):
    """Grouped-query attention of one layer."""

    def __init__(self, cfg: DecoderConfig, layer: int, backend: str) -> None:
        super().__init__()
        self.cfg, self.layer, self.backend = cfg, layer, backend
        self.q = Linear(cfg.d_model, cfg.width, bias=cfg.qkv_bias)
        self.k = Linear(cfg.d_model, cfg.kv_width, bias=cfg.qkv_bias)
        self.v = Linear(cfg.d_model, cfg.kv_width, bias=cfg.qkv_bias)
        norms = (nn.RMSNorm(cfg.head_dim, eps=cfg.norm_eps) if cfg.qk_norm else nn.Identity() for _ in range(2))
        self.q_norm, self.k_norm = norms
        self.out = Linear(cfg.width, cfg.d_model, bias=False)

    def attended(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Attend within the layout, from its queries, to all cached tokens too.

        Shapes: q (B, N, Tq, H); k, v (B, K, T, H), not rotated; returns (B, N, Tq, H).
        """
        context = layout.context
        if context is None:
            return self.attended_here(q, k, v, layout, cache)
        q, k, v = (context.to_heads(x, layout.q_pos.shape[-1]) for x in (q, k, v))
        return context.to_tokens(self.attended_here(q, k, v, layout, cache))

    def attended_here(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Attend by the heads that this process holds."""
        if cache is not None:
            plan = plan_for(self.backend, layout, q, v)
            return attend_cached(q, k, v, layer=self.layer, plan=plan, cache=cache)
        rounds = torch.is_autocast_enabled("cpu") and v.dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=rounds):  # which would round what `heads` widened
            return attend(q, k, v, layer=self.layer, backend=self.backend, layout=layout)

    def heads(self, queries_BTD: Tensor, x_BTD: Tensor) -> Heads:
        """Compute queries of some tokens, keys and values of all: (B, heads, T, H)."""
        layers, width = (self.q, self.k, self.v), self.cfg.head_dim
        if torch.compiler.is_compiling() and x_BTD.device.type == "cpu" and queries_BTD.shape == x_BTD.shape:
            made = together(layers, x_BTD)
        else:
            made = tuple(layer(x) for layer, x in zip(layers, (queries_BTD, x_BTD, x_BTD), strict=True))
        q, k, v = (x.unflatten(2, (-1, width)) for x in made)
        q, k, v = self.q_norm(q), self.k_norm(k), products.widened(v, self.v.processor)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def is_one_operation(self, layout: Layout) -> bool:
        """Return whether attention is one operation of a graph, the same for every pack."""
        here = self.backend in kernels_on(layout.k_pos.device.type)
        return here and layout.distance.is_plain and layout.context is None


def kernels_on(kind: str) -> set[str]:
    """Return the backends whose kernel is one operation of a graph on a kind of device."""
    return {name for name in KERNELS if name != "sdpa" or kind == "cpu"}


def last_tokens(x_BTD: Tensor, n: int) -> Tensor:
    """Return the last n tokens, or all where there are fewer, as on a rank of a context group."""
    return x_BTD if n >= x_BTD.shape[1] else x_BTD[:, -n:]


@dataclass(frozen=True)
class Graphs:
    """Compiled functions of `Block`, each the same for all blocks and packs."""

    whole: Callable[..., Tensor]
    before: Callable[..., Heads]
    after: Callable[..., Tensor]


class Block(nn.Module):
    """One pre-norm block: attention, then feed-forward, each added to the residual stream.

    `graphs` run where a row comes with its fixed description: one, or two around attention that is not one operation.
    """

    def __init__(self, cfg: DecoderConfig, layer: int, backend: str, graphs: Graphs | None = None) -> None:
        super().__init__()
        self.graphs = graphs
        self.attention_norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.attention = Attention(cfg, layer, backend)
        self.feed_forward_norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.feed_forward = FeedForward(cfg)

    def forward(self, x_BTD: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Run the block on every token, or on the layout's queries alone where it has fewer."""
        fixed = None if layout.segments is None else layout.segments.fixed
        graphs = self.graphs if fixed is not None else None
        if graphs is not None and self.attention.is_one_operation(layout):
            rotation = layout.q_rotations[0]
            factor = layout.logit_factor(self.attention.layer, rotation.cos_B1TH.dtype)
            return graphs.whole(self, x_BTD, fixed, rotation, factor)
        before: Callable[..., Heads] = Block.before if graphs is None else graphs.before
        after: Callable[..., Tensor] = Block.after if graphs is None else graphs.after
        n_queries = layout.q_pos.shape[-1]
        # no name holds queries, keys and values that are not rotated, so that they are freed before the other layers
        return after(self, x_BTD, self.attention.attended(*before(self, x_BTD, n_queries), layout, cache))

    def before(self, x_BTD: Tensor, n_queries: int) -> Heads:
        """Compute the queries of the last tokens and the keys and values of all, not rotated: (B, heads, T, H)."""
        normed_BTD = self.attention_norm(x_BTD)
        return self.attention.heads(last_tokens(normed_BTD, n_queries), normed_BTD)

    def after(self, x_BTD: Tensor, out_BNTH: Tensor) -> Tensor:
        """Add what the queries attended to, then feed forward: (B, T, D) to (B, Tq, D)."""
        x_BTD = last_tokens(x_BTD, out_BNTH.shape[2]) + self.attention.out(out_BNTH.transpose(1, 2).flatten(2))
        out: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return out

    def whole(self, x_BTD: Tensor, row: FixedRow, rotation: Rotation, factor: Tensor | None) -> Tensor:
        """Run the block on a packed row by operations that are the same for every pack."""
        made = self.before(x_BTD, x_BTD.shape[1])
        return self.after(x_BTD, row.attend(*made, rotation, factor, KERNELS[self.attention.backend]))


def compile_block(compiler: Any) -> Graphs:
    """Compile the forward and backward pass of a block, once for all blocks, by a backend of torch.compile.

    Without the splitting that torch plans for models compiled as a whole inside DDP.
    """
    torch._dynamo.config.optimize_ddp = False
    one = partial(torch.compile, backend=compiler, fullgraph=True, dynamic=False)
    return Graphs(one(Block.whole), one(Block.before), one(Block.after))
