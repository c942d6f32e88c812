"""Attention pair by pair under a dense mask, for ids and masks that cannot be cut into tiles, and for measurements.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, Q queries of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.model.attention.layout import Layout

DENSE_ROWS = 256  # query rows whose logits are stored at a time


def band_logits(queries: list[Tensor], keys: list[Tensor], layout: Layout, rows: slice, columns: slice) -> Tensor:
    """Compute the logits of some queries with some keys, each pair's in the band that contains it.

    Shapes: queries: one (B, N, Q, H) per band, those of `rows` alone; keys: one (B, K, Tk, H) per key map; both
        rotated and of one dtype; returns (B, N, Q, columns).
    """
    q_pos = torch.atleast_2d(layout.q_pos)[:, rows, None]
    k_pos = torch.atleast_2d(layout.k_pos)[:, None, columns]
    out = None
    for band, query, number in zip(layout.distance.bands, queries, layout.key_of_band, strict=True):
        key = keys[number][:, :, columns]
        grouped = query.reshape(len(key), key.shape[1], -1, key.shape[3])  # heads of a group as rows of one
        own = (grouped @ key.transpose(-1, -2)).reshape(*query.shape[:3], -1)
        out = own if out is None else torch.where(band.region.contains(q_pos, k_pos)[:, None], own, out)
    assert out is not None, "a distance method has a band"
    return out * float(queries[0].shape[-1] ** -0.5)


def attend_dense(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend under a layout's mask, with logits and weights in float32 or wider, in blocks of rows.

    Shapes: q (B, N, Tq, H), not rotated; keys: one (B, K, Tk, H) per key map, rotated; v (B, K, Tk, H); returns
        (B, N, Tq, H), zeros for a query that sees nothing.
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    bands = range(len(layout.distance.bands))
    queries = [layout.rotate_queries(q, number, layer, v.dtype).to(wide) for number in bands]
    keys, v_wide, seen_B1QK = [k.to(wide) for k in keys], v.to(wide), layout.seen()[:, None]
    outs = []
    for start in range(0, q.shape[2], DENSE_ROWS):
        rows = slice(start, start + DENSE_ROWS)
        logits = band_logits([query[:, :, rows] for query in queries], keys, layout, rows, slice(None))
        seen = seen_B1QK[:, :, rows]
        weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1)
        weights = torch.where(seen.any(-1, keepdim=True), weights, 0.0)
        grouped = weights.reshape(len(v), v.shape[1], -1, v.shape[2])
        outs.append((grouped @ v_wide).reshape(*weights.shape[:3], -1))
    return torch.cat(outs, dim=2).to(v.dtype)
