"""Attention by definition; every other backend is tested against it.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Query head n reads key-value head n // (N / K).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.model.attention.layout import Layout
from lab.positions import Distance

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
