"""Attention under a dense mask, pair by pair, for ids and masks that cannot be cut into tiles.

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.model.attention import fused
from lab.model.attention.kernels import grouped
from lab.model.attention.layout import Layout

DENSE_ROWS = 256  # query rows whose logits are stored at a time


def attend_dense(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend under a layout's mask.

    Shapes: q (B, N, Tq, H), not rotated; keys: one (B, K, Tk, H) per key map, rotated; v (B, K, Tk, H); returns
        (B, N, Tq, H), zeros for a query that sees nothing.
    """
    attend = attend_band if len(layout.distance.bands) == 1 else attend_bands
    return attend(q, keys, v, layout, layer)


def attend_band(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend within the only band by torch's own kernel."""
    query, key, seen_BQK = layout.rotate_queries(q, 0, layer, v.dtype), keys[0], layout.seen()
    if q.shape[2] == 1:  # the heads of a group become rows of one head: no key is repeated
        query = query.reshape(len(v), v.shape[1], -1, v.shape[3])
    elif fused.suits(v):  # the fused kernel that takes a mask has no grouped heads
        key, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (key, v))
    gqa = query.shape[1] != v.shape[1]
    out = F.scaled_dot_product_attention(query, key, v, attn_mask=seen_BQK[:, None], enable_gqa=gqa)
    return torch.where(seen_BQK.any(-1)[:, None, :, None], out, 0.0).reshape(q.shape)


def attend_bands(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Choose each pair's band, with logits and weights in float32 or wider, in blocks of rows."""
    bands, wide = layout.distance.bands, torch.promote_types(v.dtype, torch.float32)
    queries = [layout.rotate_queries(q, number, layer, v.dtype) for number in range(len(bands))]
    keys, v_wide, seen_BQK = [k.to(wide) for k in keys], v.to(wide), layout.seen()
    q_pos, k_pos = torch.atleast_2d(layout.q_pos)[:, :, None], torch.atleast_2d(layout.k_pos)[:, None, :]
    outs = []
    for start in range(0, q.shape[2], DENSE_ROWS):
        part = slice(start, start + DENSE_ROWS)
        logits = None
        for band, query, number in zip(bands, queries, layout.key_of_band, strict=True):
            rows = grouped(query[:, :, part], v).to(wide)
            own = (rows.flatten(2, 3) @ keys[number].transpose(-1, -2)).view(*rows.shape[:4], -1)
            inside = band.region.contains(q_pos[:, part], k_pos)[:, None, None]
            logits = own if logits is None else torch.where(inside, own, logits)
        assert logits is not None, "a distance method has a band"
        seen = seen_BQK[:, None, None, part]
        weights = torch.softmax((logits * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf), dim=-1)
        weights = torch.where(seen.any(-1, keepdim=True), weights, 0.0)
        outs.append((weights.flatten(2, 3) @ v_wide).view(*rows.shape).flatten(1, 2))
    return torch.cat(outs, dim=2).to(v.dtype)
