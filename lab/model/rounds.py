"""Running a method's bands in rounds of tiles, for kernels that run many spans in one call.

The tiles of a round belong to one band and have no query in common, so that one call runs them all and their output is
merged into that of the rows at once: as in tiles.py, by log-sum-exp, and with the same gradient. The number of rounds
depends on the method, never on the number of segments or their length.

Axes: B batch, T tokens, N heads, K key-value heads, H per head; rows are the B * T tokens end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lab.model.fused import FusedKernel
from lab.model.layout import Layout
from lab.model.segments import Spans
from lab.positions.regions import Tile


@dataclass(frozen=True, eq=False)
class Round:
    """Tiles that one call runs: which rows its queries and keys are, span after span."""

    band: int
    causal: bool
    q_rows: Tensor
    k_rows: Tensor
    spans: Spans


@dataclass
class Draft:
    """Tiles of a round that is being filled; queries up to `stop` are taken."""

    band: int
    causal: bool
    stop: int = 0
    tiles: list[Tile] = field(default_factory=list)


def rounds_of(layout: Layout, batch: int) -> list[Round]:
    """Sort the tiles of a layout into rounds, band by band, once for all layers."""
    key = ("rounds", batch)
    if key not in layout.cache:
        n_q, n_k = layout.q_pos.shape[-1], layout.k_pos.shape[-1]
        drafts = drafts_of(layout)
        layout.cache[key] = [laid_out(draft, batch, n_q, n_k, layout.k_pos.device) for draft in drafts]
    made: list[Round] = layout.cache[key]
    return made


def drafts_of(layout: Layout) -> list[Draft]:
    """Give every tile to the first round of its kind whose queries all come before its own."""
    drafts: list[Draft] = []
    for piece in layout.tiles:
        kind = (piece.band, piece.tile.shape != "full")
        fitting = (d for d in drafts if (d.band, d.causal) == kind and d.stop <= piece.tile.q.start)
        draft = next(fitting, None)
        if draft is None:
            drafts.append(draft := Draft(*kind))
        draft.tiles.append(piece.tile)
        draft.stop = piece.tile.q.stop
    return sorted(drafts, key=lambda draft: draft.band)


def laid_out(draft: Draft, batch: int, n_q: int, n_k: int, device: torch.device) -> Round:
    """List the rows of a round's tiles for every row of the batch; an upper tile is a causal one in reverse order."""
    q_rows = rows_of([(tile.q, tile.shape == "upper") for tile in draft.tiles], batch, n_q)
    k_rows = rows_of([(tile.k, tile.shape == "upper") for tile in draft.tiles], batch, n_k)
    spans = Spans.of([len(t.q) for t in draft.tiles] * batch, [len(t.k) for t in draft.tiles] * batch, device)
    return Round(draft.band, draft.causal, q_rows.to(device), k_rows.to(device), spans)


def rows_of(places: Sequence[tuple[range, bool]], batch: int, n_tokens: int) -> Tensor:
    """Number the rows of places in a sequence, some in reverse order, for every sequence of the batch."""
    parts = [torch.arange(place.start, place.stop) for place, _ in places]
    one = torch.cat([part.flip(0) if turned else part for part, (_, turned) in zip(parts, places, strict=True)])
    return (one + n_tokens * torch.arange(batch)[:, None]).flatten()


def attend_rounds(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int, kernel: FusedKernel) -> Tensor:
    """Attend over the tiles of a layout.

    Shapes: q (B, N, Tq, H), not rotated; keys: one (B, K, Tk, H) per key map, rotated; v (B, K, Tk, H); returns
        (B, N, Tq, H). A query that no tile covers, of the padding, gets zeros.
    """
    factor = layout.logit_factor(layer, layout.q_rotations[0].cos_B1TH.dtype)
    out: Tensor = AttentionInRounds.apply(q, v, factor, layout, kernel, *keys)
    return out


class AttentionInRounds(torch.autograd.Function):
    """Attention over rounds of tiles, with the gradient of the whole."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, v: Tensor, factor: Tensor | None, layout: Layout, kernel: FusedKernel, *keys: Tensor
    ) -> Tensor:
        """Run every round and merge it into the rows it covers."""
        batch, heads, n_q, width = q.shape
        out = torch.zeros(batch * n_q, heads, width, dtype=torch.float32, device=q.device)
        lse = torch.full((heads, batch * n_q), -torch.inf, dtype=torch.float32, device=q.device)
        k_rows, v_rows = [as_rows(k) for k in keys], as_rows(v)
        band, q_rows = -1, q
        for part in rounds_of(layout, batch):
            if part.band != band:
                band, q_rows = part.band, placed(q, layout, part.band, factor, v.dtype)
            k = k_rows[layout.key_of_band[band]]
            found = kernel.forward(q_rows[part.q_rows], k[part.k_rows], v_rows[part.k_rows], part.spans, part.causal)
            merge(out, lse, part.q_rows, *found)
        ctx.layout, ctx.kernel = layout, kernel
        ctx.save_for_backward(q, v, factor, out, lse, *keys)
        return as_heads(out, batch).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Add up every round's share of the gradients, with the whole rows' output and log-sum-exp."""
        q, v, factor, out, lse, *keys = ctx.saved_tensors
        layout, kernel, batch = ctx.layout, ctx.kernel, len(q)
        grad, k_rows, v_rows = as_rows(grads[0]), [as_rows(k) for k in keys], as_rows(v)
        dq = torch.zeros_like(q, dtype=torch.float32)
        dks = [torch.zeros_like(k, dtype=torch.float32) for k in k_rows]
        dv = torch.zeros_like(v_rows, dtype=torch.float32)
        rounds = rounds_of(layout, batch)
        for band in range(len(layout.distance.bands)):
            q_rows, key = placed(q, layout, band, factor, v.dtype), layout.key_of_band[band]
            dq_band = torch.zeros_like(q_rows, dtype=torch.float32)
            for part in (part for part in rounds if part.band == band):
                ours, theirs = part.q_rows, part.k_rows
                tensors = (grad[ours], q_rows[ours], k_rows[key][theirs], v_rows[theirs], out[ours], lse[:, ours])
                shares = kernel.backward(*tensors, part.spans, part.causal)
                dq_band[ours] += shares[0]
                dks[key].index_add_(0, theirs, shares[1].float())
                dv.index_add_(0, theirs, shares[2].float())
            turned = layout.q_rotations[band].rotate_back(as_heads(dq_band, batch))
            dq += turned if factor is None else turned * factor[:, None, :, None]
        dk = (as_heads(x, batch).to(v.dtype) for x in dks)
        return dq.to(q.dtype), as_heads(dv, batch).to(v.dtype), None, None, None, *dk


def placed(q: Tensor, layout: Layout, band: int, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rotate and scale queries (B, N, T, H) for a band and lay them out as rows (B * T, N, H)."""
    q = layout.q_rotations[band].rotate(q)
    return as_rows((q if factor is None else q * factor[:, None, :, None]).to(dtype))


def as_rows(x: Tensor) -> Tensor:
    """Lay (B, N, T, H) out as (B * T, N, H)."""
    return x.transpose(1, 2).flatten(0, 1)


def as_heads(x: Tensor, batch: int) -> Tensor:
    """Lay (B * T, N, H) out as (B, N, T, H)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


def merge(out: Tensor, lse: Tensor, rows: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a round's output into that of its rows, in place.

    Shapes: out (B * T, N, H); lse (N, B * T); rows (n,); part (n, N, H); part_lse (N, n).
    """
    before = lse[:, rows]
    total = torch.logaddexp(before, part_lse)
    shares = [(x - total).exp().T[..., None] for x in (before, part_lse)]
    out[rows] = out[rows] * shares[0] + part * shares[1]
    lse[:, rows] = total
