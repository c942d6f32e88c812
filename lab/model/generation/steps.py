"""The decoder's pass over one new token of each row, on a CPU from the weights alone.

There a call of a layer takes as long as the product of one token with its weights, so that a pass through the modules
takes up to twice as long as the same operations without them.

Axes: B batch, N heads, K key-value heads, H per head, D model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.model.attention import devices
from lab.model.attention.attend import attend_cached
from lab.model.attention.cache import KeyCache
from lab.model.attention.layout import Layout
from lab.model.attention.plan import plan_for
from lab.model.attention.rotary import rotated_whole
from lab.model.decoder import Decoder
from lab.model.generation.graphs import graphed_step, suits_graph
from lab.model.gradients import WIDE, normalized
from lab.model.inference import suits_onednn
from lab.model.products import onednn

Function = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def step_of(model: Decoder, cache: KeyCache, n_rows: int, coming: Layout | None) -> Function:
    """Return a function from the next tokens of so many rows, (B,), to the logits that follow, (B, V).

    `coming` is the layout of all tokens to come, or None where each pass must rotate all keys. The weights must not
    change while the function is in use.
    """
    if is_plain(model, cache):
        return plain_step(model, cache, n_rows, coming)
    graphed = graphed_step(model, cache, n_rows, coming) if coming and suits_graph(model, cache, coming) else None
    if graphed is not None:
        return graphed

    def step(token: Tensor) -> Tensor:
        layout = coming and coming.step(cache.length)
        logits: Tensor = model(token[:, None], cache=cache, layout=layout, last_only=True)
        return logits[:, -1]

    return step


def is_plain(model: Decoder, cache: KeyCache) -> bool:
    """Return whether all is on one CPU, in one dtype that it multiplies in."""
    on_cpu = devices.kind(model.embedding.weight.device) == "cpu" and not torch.is_autocast_enabled("cpu")
    kinds = {(type(weight), weight.dtype) for weight in model.parameters()}
    return on_cpu and cache.context is None and len(kinds) == 1 and kinds <= {(nn.Parameter, x) for x in WIDE}


def plain_step(model: Decoder, cache: KeyCache, n_rows: int, coming: Layout | None) -> Function:
    """Return `Decoder.forward` for one token of each row, (B,) to (B, V)."""
    blocks = [block_step(block, n_rows) for block in model.blocks]
    norm, head = normalizer(model.norm), multiplier(model.head, n_rows)
    ordered = coming is not None and is_by_order(model, coming)

    @torch.inference_mode()
    def step(token: Tensor) -> Tensor:
        attend = by_plan(model, coming, token, cache) if coming is None or not ordered else by_order(coming, cache)
        x_BD: Tensor = model.embedding(token)
        for block in blocks:
            x_BD = block(x_BD, attend)
        cache.advance(1)
        return head(norm(x_BD))

    return step


def is_by_order(model: Decoder, coming: Layout) -> bool:
    """Return whether a token attends to all keys by one rotation and plain logits."""
    plain = coming.distance.is_plain and not coming.frequencies.scales_logits
    return plain and model.backend in ("auto", "sdpa")


def by_order(coming: Layout, cache: KeyCache) -> Attend:
    """Return attention of the next token to all keys, for which one rotation and two products are enough."""
    length = cache.length
    cos, sin = (x.narrow(2, length - coming.n_past, 1) for x in coming.q_rotations[0].whole)
    scale = 1 / math.sqrt(cos.shape[-1])
    q_cos, q_sin = cos * scale, sin * scale

    def attend(q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        keys, values = cache.layer(layer, v.dtype)
        rotated_whole(k, cos, sin, keys.narrow(2, length, 1))
        values.narrow(2, length, 1).copy_(v)
        keys, values = (x.narrow(2, 0, length + 1).flatten(0, 1) for x in (keys, values))
        q = rotated_whole(q, q_cos, q_sin, None).view(len(keys), -1, keys.shape[2])  # B * K, N / K, H
        return torch.bmm(torch.bmm(q, keys.transpose(1, 2)).softmax(-1), values).view(len(k), -1)

    return attend


def by_plan(model: Decoder, coming: Layout | None, token: Tensor, cache: KeyCache) -> Attend:
    """Return attention of the next token as any forward pass plans it."""
    layout = coming.step(cache.length) if coming else model.layout(token[:1, None], cache=cache)
    like = model.embedding.weight.new_empty(1, model.cfg.n_heads, 1, model.cfg.head_dim)
    plan = plan_for(model.backend, layout, like, like)
    return lambda q, k, v, layer: attend_cached(q, k, v, layer=layer, plan=plan, cache=cache).flatten(1)


def block_step(block: Any, n_rows: int) -> Callable[[Tensor, Attend], Tensor]:
    """Return `Block.forward` for one token of each row, (B, D) to (B, D)."""
    attention, feed_forward = block.attention, block.feed_forward
    layer, width = attention.layer, attention.cfg.head_dim
    norms = block.attention_norm, block.feed_forward_norm, attention.q_norm, attention.k_norm
    attention_norm, feed_forward_norm, q_norm, k_norm = map(normalizer, norms)
    layers = attention.q, attention.k, attention.v, attention.out, feed_forward.gate, feed_forward.up, feed_forward.out
    to_q, to_k, to_v, out, gate, up, down = (multiplier(layer, n_rows) for layer in layers)

    def step(x_BD: Tensor, attend: Attend) -> Tensor:
        h_BD = attention_norm(x_BD)
        q, k, v = (f(h_BD).view(len(h_BD), -1, 1, width) for f in (to_q, to_k, to_v))
        x_BD = x_BD + out(attend(q_norm(q), k_norm(k), v, layer))
        h_BD = feed_forward_norm(x_BD)
        return x_BD + down(F.silu(gate(h_BD), inplace=True).mul_(up(h_BD)))

    return step


def multiplier(layer: nn.Linear, n_rows: int) -> Function:
    """Return the layer as a function of so many rows, (B, in) to (B, out), by the library that is faster."""
    weight, bias = layer.weight, layer.bias
    if suits_onednn(weight.new_empty(n_rows, layer.in_features), weight):
        kernel: Any = onednn().default
        return lambda x: kernel(x, weight, bias, "none", [], "")
    turned = weight.t()
    return partial(torch.mm, mat2=turned) if bias is None else lambda x: torch.addmm(bias, x, turned)


def normalizer(norm: nn.Module) -> Function:
    """Return a norm as a function, or the function that returns its argument."""
    if not isinstance(norm, nn.RMSNorm):
        return lambda x: x
    weight, eps = norm.weight, norm.eps
    assert eps is not None, "the decoder's norms have their eps from its config"
    return lambda x: normalized(x, weight, eps)[0]
