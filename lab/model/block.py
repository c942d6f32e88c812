"""One transformer block, and its forward and backward pass compiled as two graphs around attention.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, D model.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.model.attention.attend import attend_layout
from lab.model.attention.backends import attention_dtype, rotates_in_graph
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.attention.layout import KeyCache, Layout, Rotation
from lab.model.config import DecoderConfig
from lab.model.devices import Linear, compute_dtype

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""
Graphs = tuple[Callable[..., Heads], Callable[..., Tensor]]
"""`Block.before` and `Block.after` compiled, each the same for all blocks and packs."""


class Attention(nn.Module):
    """Grouped-query attention of one layer."""

    def __init__(self, cfg: DecoderConfig, layer: int, backend: str) -> None:
        super().__init__()
        self.cfg, self.layer, self.backend = cfg, layer, backend
        has_bias = cfg.qkv == "bias"
        self.q = Linear(cfg.d_model, cfg.width, bias=has_bias)
        self.k = Linear(cfg.d_model, cfg.kv_width, bias=has_bias)
        self.v = Linear(cfg.d_model, cfg.kv_width, bias=has_bias)
        norm = partial(nn.RMSNorm, cfg.head_dim, eps=cfg.norm_eps) if cfg.qkv == "norm" else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()
        self.out = Linear(cfg.width, cfg.d_model, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Attend from queries (B, N, Tq, H) to keys and values (B, K, T, H), none rotated, and to cached ones.

        Shapes: returns that of q.
        """
        context = layout.context
        if context is not None:
            q, k, v = (context.to_heads(x, layout.q_pos.shape[-1]) for x in (q, k, v))
        out = attend_layout(q, k, v, layout, layer=self.layer, backend=self.backend, cache=cache)
        return out if context is None else context.to_tokens(out)

    def heads(self, queries_BTD: Tensor, x_BTD: Tensor) -> Heads:
        """Compute queries of some tokens, keys and values of all: (B, heads, T, H)."""
        projected = self.q(queries_BTD), self.k(x_BTD), self.v(x_BTD)
        q, k, v = (x.unflatten(2, (-1, self.cfg.head_dim)) for x in projected)
        return self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)


def last_tokens(x_BTD: Tensor, n: int) -> Tensor:
    """Return the last n tokens, or all if there are fewer, as on a rank of a context group."""
    return x_BTD if n >= x_BTD.shape[1] else x_BTD[:, -n:]


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.gate = Linear(cfg.d_model, cfg.d_ff, bias=False)
        self.up = Linear(cfg.d_model, cfg.d_ff, bias=False)
        self.out = Linear(cfg.d_ff, cfg.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    """One block: attention, then feed-forward, each added to the residual stream, x + f(norm(x)).

    Compiled `graphs`, before and after attention, train on packed rows. Attention differs from pack to pack.
    """

    def __init__(self, cfg: DecoderConfig, layer: int, backend: str, graphs: Graphs | None = None) -> None:
        super().__init__()
        self.graphs = graphs
        self.attention_norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.attention = Attention(cfg, layer, backend)
        self.feed_forward_norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.feed_forward = FeedForward(cfg)

    def forward(self, x_BTD: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Run the block on every token, or on the layout's queries if those are fewer."""
        n_queries = layout.q_pos.shape[-1]
        attention = self.attention
        before, after = Block.before, Block.after
        if self.graphs is not None and layout.segments is not None and torch.is_grad_enabled():
            before, after = self.graphs
            # Ranks of a context group exchange unrotated heads between the graphs: rotation needs the full row.
            if layout.context is None and rotates_in_graph(attention.backend, layout):
                rotation = layout.q_rotations[0]
                factor = layout.logit_factor(attention.layer, rotation.cos_B1TH.dtype)
                heads = before(self, x_BTD, n_queries, rotation, factor)
                with torch.autocast(x_BTD.device.type, enabled=False):  # as in `attend_layout`
                    out = CAUSAL_KERNELS[attention.backend](*heads, layout.segments, layout.window)
                del heads  # before the feed-forward layer
                return after(self, x_BTD, out)
        # No name refers to queries, keys and values, so that they are freed too.
        return after(self, x_BTD, attention.attend(*before(self, x_BTD, n_queries), layout, cache))

    def before(
        self, x_BTD: Tensor, n_queries: int, rotation: Rotation | None = None, factor: Tensor | None = None
    ) -> Heads:
        """Compute queries of the last tokens, keys and values of all, (B, heads, T, H), rotated by a given rotation."""
        normed_BTD = self.attention_norm(x_BTD)
        q, k, v = self.attention.heads(last_tokens(normed_BTD, n_queries), normed_BTD)
        if rotation is None:
            return q, k, v
        # The kernel reads tokens before heads. Rotated in that order, the results lie in memory as it reads them, and
        # nothing is copied.
        q, k = (rotation.tokens_first().rotate(x.transpose(1, 2)).transpose(1, 2) for x in (q, k))
        if factor is not None:
            q = q * factor[:, None, :, None]
        dtype = attention_dtype(q, v)
        return q.to(dtype), k.to(dtype), v.to(dtype)

    def after(self, x_BTD: Tensor, out_BNTH: Tensor) -> Tensor:
        """Add what the queries attended to, then feed forward: (B, T, D) to (B, Tq, D)."""
        out_BTD = out_BNTH.transpose(1, 2).flatten(2).to(compute_dtype(self.attention.out.weight))
        x_BTD = last_tokens(x_BTD, out_BNTH.shape[2]) + self.attention.out(out_BTD)
        return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


def compile_block(compiler: Any) -> Graphs:
    """Compile the forward and backward pass of a block, once for all blocks, by a backend of torch.compile."""
    # By default torch splits graphs at DDP's buckets, for models that are compiled inside DDP.
    torch._dynamo.config.optimize_ddp = False
    one = partial(torch.compile, backend=compiler, fullgraph=True, dynamic=False)
    return one(Block.before), one(Block.after)
