"""Attention pair by pair under a dense mask, and the reference: attention by definition, to test every backend by.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, Q queries of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.model.attention.layout import Layout
from lab.positions import Distance

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


REFERENCE_ROWS = 64  # query rows whose (rows, Tk, H/2) angles are stored at a time


def reference(q: Tensor, k: Tensor, v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend by definition: each pair's logit is q . R(rel_pos) k, from the matrix of relative positions itself.

    No query or key is rotated on its own. With pair (a, b) of q and (c, d) of k at angle t = rel_pos * inv_freq,
    the pair adds (a c + b d) cos t + (a d - b c) sin t. Differentiable; memory is (rows, Tk, H/2) at a time.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tk, H), not rotated; returns (B, N, Tq, H) in the dtype of v.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    groups = q.shape[1] // k.shape[1]
    k, v_wide = (x.to(dtype).repeat_interleave(groups, dim=1) for x in (k, v))
    q1, q2 = q.to(dtype).chunk(2, dim=-1)
    k1, k2 = k.chunk(2, dim=-1)
    inv_freq = layout.frequencies.inv_freq.to(q.device)
    visible_BQK = layout.seen()
    factor = layout.frequencies.logit_factor(layout.q_pos, layer) * layout.distance.logit_factor(layout.q_pos)
    factor = torch.atleast_2d(factor.to(dtype))
    outs = []
    for start in range(0, q.shape[2], REFERENCE_ROWS):
        part = slice(start, start + REFERENCE_ROWS)
        rel = relative_positions(layout.q_pos, layout.k_pos, layout.distance, part).nan_to_num()  # hidden pairs
        angle = rel[:, None, :, :, None] * inv_freq  # (B or 1, 1, rows, Tk, H/2)
        a, b = q1[:, :, part, None], q2[:, :, part, None]
        c, d = k1[:, :, None], k2[:, :, None]
        pairs = (a * c + b * d) * angle.cos().to(dtype) + (a * d - b * c) * angle.sin().to(dtype)
        logits = pairs.sum(-1) * factor[:, None, part, None] * q.shape[-1] ** -0.5
        seen = visible_BQK[:, None, part]
        weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1)
        outs.append(torch.where(seen.any(-1, keepdim=True), weights, 0.0) @ v_wide)
    return torch.cat(outs, dim=2).to(v.dtype)


def relative_positions(q_pos: Tensor, k_pos: Tensor, distance: Distance, part: slice) -> Tensor:
    """Compute the distance method's matrix, (B or 1, rows, Tk), for the query rows of `part`."""
    q_pos, k_pos = torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)
    rows = max(len(q_pos), len(k_pos))
    q_pos, k_pos = q_pos.expand(rows, -1), k_pos.expand(rows, -1)
    return torch.stack([distance.rel_pos(m[part], n) for m, n in zip(q_pos, k_pos, strict=True)])
