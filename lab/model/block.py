"""One transformer block, and its forward and backward pass compiled as one graph.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, D model.
"""

from __future__ import annotations

from collections.abc import Callable
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
from lab.model.attention.rotary import Rotation
from lab.model.config import DecoderConfig
from lab.model.layers import FeedForward, Linear, RMSNorm, together

KERNELS = {"varlen": backends.varlen_kernel, "sdpa": packed_kernel}  # one operation of a graph each, sdpa on a CPU


class Attention(nn.Module):
    """Grouped-query attention of one layer."""

    def __init__(self, cfg: DecoderConfig, layer: int, backend: str) -> None:
        super().__init__()
        self.cfg, self.layer, self.backend = cfg, layer, backend
        self.q = Linear(cfg.d_model, cfg.width, bias=cfg.qkv_bias)
        self.k = Linear(cfg.d_model, cfg.kv_width, bias=cfg.qkv_bias)
        self.v = Linear(cfg.d_model, cfg.kv_width, bias=cfg.qkv_bias)
        norms = (RMSNorm(cfg.head_dim, eps=cfg.norm_eps) if cfg.qk_norm else nn.Identity() for _ in range(2))
        self.q_norm, self.k_norm = norms
        self.out = Linear(cfg.width, cfg.d_model, bias=False)

    def forward(self, x_BTD: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Attend within the layout, from the tokens that are its queries, to all cached ones too.

        Shapes: x_BTD (B, T, D); returns (B, Tq, D) for the layout's last Tq queries of the T tokens.
        """
        q, k, v = self.project(x_BTD, layout)
        if cache is None:
            rounds = torch.is_autocast_enabled("cpu") and v.dtype == torch.bfloat16
            with torch.autocast("cpu", enabled=rounds):  # which would round what `heads` widened
                out_BNTH = attend(q, k, v, layer=self.layer, backend=self.backend, layout=layout)
        else:
            out_BNTH = attend_cached(q, k, v, layer=self.layer, backend=self.backend, layout=layout, cache=cache)
        return self.join(out_BNTH, layout)

    def project(self, x_BTD: Tensor, layout: Layout) -> tuple[Tensor, ...]:
        """Compute the queries of the layout and the keys and values of all tokens, not rotated: (B, heads, T, H)."""
        made = self.heads(query_tokens(x_BTD, layout), x_BTD)
        if layout.context is None:
            return made
        return tuple(layout.context.to_heads(x, layout.q_pos.shape[-1]) for x in made)

    def heads(self, queries_BTD: Tensor, x_BTD: Tensor) -> tuple[Tensor, ...]:
        """Compute queries of some tokens, keys and values of all: (B, heads, T, H)."""
        layers, width = (self.q, self.k, self.v), self.cfg.head_dim
        if torch.compiler.is_compiling() and x_BTD.device.type == "cpu":
            made = together(layers, x_BTD)
        else:
            made = tuple(layer(x) for layer, x in zip(layers, (queries_BTD, x_BTD, x_BTD), strict=True))
        q, k, v = (x.unflatten(2, (-1, width)) for x in made)
        v = products.attended(v, self.v.processor)
        return tuple(part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))

    def join(self, out_BNTH: Tensor, layout: Layout) -> Tensor:
        """Join the heads' outputs, (B, heads, Tq, H) to (B, Tq, D)."""
        out_BNTH = out_BNTH if layout.context is None else layout.context.to_tokens(out_BNTH)
        joined: Tensor = self.out(out_BNTH.transpose(1, 2).flatten(2))
        return joined


def query_tokens(x_BTD: Tensor, layout: Layout) -> Tensor:
    """Return the tokens that are queries of the layout, the last ones; all of a context rank's part of the row."""
    n_queries = layout.q_pos.shape[-1]
    return x_BTD if n_queries >= x_BTD.shape[1] else x_BTD[:, -n_queries:]


class Block(nn.Module):
    """One pre-norm block: attention, then feed-forward, each added to the residual stream.

    `compiled` is `Block.whole` compiled, which runs wherever a row comes with its fixed description.
    """

    def __init__(
        self, cfg: DecoderConfig, layer: int, backend: str, compiled: Callable[..., Tensor] | None = None
    ) -> None:
        super().__init__()
        self.compiled = compiled
        self.attention_norm = RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.attention = Attention(cfg, layer, backend)
        self.feed_forward_norm = RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.feed_forward = FeedForward(cfg)

    def forward(self, x_BTD: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Run the block on every token, or on the layout's queries alone where it has fewer."""
        fixed = None if layout.segments is None else layout.segments.fixed
        if self.compiled is not None and fixed is not None:
            rotation = layout.q_rotations[0]
            factor = layout.logit_factor(self.attention.layer, rotation.cos_B1TH.dtype)
            return self.compiled(self, x_BTD, fixed, rotation, factor)
        x_BTD = query_tokens(x_BTD, layout) + self.attention(self.attention_norm(x_BTD), layout, cache)
        out: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return out

    def whole(self, x_BTD: Tensor, row: FixedRow, rotation: Rotation, factor: Tensor | None) -> Tensor:
        """Run the block on a packed row by operations that are the same for every pack."""
        q, k, v = self.attention.heads(*[self.attention_norm(x_BTD)] * 2)
        out_BNTH = row.attend(q, k, v, rotation, factor, KERNELS[self.attention.backend])
        x_BTD = x_BTD + self.attention.out(out_BNTH.transpose(1, 2).flatten(2))
        out: Tensor = x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))
        return out


def compile_block(compiler: Any) -> Callable[..., Tensor]:
    """Compile the forward and backward pass of a block, once for all blocks, by a backend of torch.compile.

    Without the splitting that torch plans for models compiled as a whole inside DDP.
    """
    torch._dynamo.config.optimize_ddp = False
    compiled: Callable[..., Tensor] = torch.compile(Block.whole, backend=compiler, fullgraph=True, dynamic=False)
    return compiled
