"""Run a distance method's bands in rounds of tiles, and merge them by log-sum-exp.

Every query attends over the keys of its tiles separately; tile t gives the output o_t and l_t, the log-sum-exp of its
logits. The output over all keys is sum_t exp(l_t - l) o_t with l = log sum_t exp(l_t). The backward pass needs no
gradient of l_t: from o and l of the full row, a tile's kernel computes the weights exp(logit - l) of the full row.

The tiles of a round belong to one band and have no query in common, so that one call runs them all. The number of
rounds depends on the method only, not on the number or length of the segments.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Source: arXiv:2410.18745, Algorithm 2, whose "sum of
the attention map" is the sum of the unnormalised exponentials; arXiv:2402.17463, section 3.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.model.attention.kernels import SpanKernel
from lab.model.attention.layout import Layout, Rotation
from lab.model.attention.segments import HOST, Spans
from lab.model.devices import to_device
from lab.positions.regions import Near, Region, Tile


def attend_bands(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int, kernel: SpanKernel) -> Tensor:
    """Attend over the bands of a layout, with shapes as in `attend_dense`; a query of padding gets zeros."""
    return Bands.apply(q, v, layout, layer, kernel, *keys)  # type: ignore[no-untyped-call]


TokenIndex = slice | Tensor
"""Some tokens of every sequence of a batch."""


def index_runs(runs: Sequence[range], device: torch.device) -> TokenIndex:
    """Index the tokens of runs, which may descend."""
    # Rising runs that follow each other are one slice, which is a view: nothing is gathered or copied.
    if all(a.stop == b.start for a, b in itertools.pairwise(runs)) and all(run.step > 0 for run in runs):
        return slice(runs[0].start, runs[-1].stop)
    return to_device(torch.cat([torch.arange(run.start, run.stop, run.step, device=HOST) for run in runs]), device)


def take(x: Tensor, tokens: TokenIndex) -> Tensor:
    """Gather tokens of (B, T, ...) as (B * n, ...)."""
    return x[:, tokens].flatten(0, 1)


def put(x: Tensor, tokens: TokenIndex, part: Tensor) -> None:
    """Write tokens, each of which occurs once."""
    x[:, tokens] = part.unflatten(0, (len(x), -1))


def add(x: Tensor, tokens: TokenIndex, part: Tensor) -> None:
    """Add to tokens, some of which may occur several times."""
    part = part.to(x.dtype).unflatten(0, (len(x), -1))
    if isinstance(tokens, slice):
        x[:, tokens] += part
    else:
        x.index_add_(1, tokens, part)  # an accumulating index_put_ would sort the indices first


class Round(NamedTuple):
    """Tiles that one call runs, span after span."""

    queries: TokenIndex
    keys: TokenIndex
    spans: Spans


def arrange_rounds(layout: Layout, batch: int, windows: bool) -> list[list[Round]]:
    """Sort the tiles of each band of a layout into rounds, once for all layers.

    A tile belongs to the first round of its shape whose queries all precede its own.
    """
    key = batch, windows
    if key not in layout.rounds:
        by_band: list[list[list[Tile]]] = [[] for _ in layout.bands]
        for number, tile in layout.tiles(windows):
            for tiles in by_band[number]:
                # Tiles come in rising order of queries: no tile of a round ends behind its last one.
                if kernel_shape(tiles[-1]) == kernel_shape(tile) and tiles[-1].q.stop <= tile.q.start:
                    tiles.append(tile)
                    break
            else:
                by_band[number].append([tile])
        rounds = []
        for band, tiles_by_round in zip(layout.bands, by_band, strict=True):
            rounds.append([build_round(tiles, band.region, batch, layout.k_pos.device) for tiles in tiles_by_round])
        layout.rounds[key] = rounds
    return layout.rounds[key]


def kernel_shape(tile: Tile) -> str:
    """Return the shape that a kernel runs: an upper triangle is a causal one with queries and keys in reverse order."""
    return "causal" if tile.shape == "upper" else tile.shape


def build_round(tiles: list[Tile], region: Region, batch: int, device: torch.device) -> Round:
    """Collect the tokens of a round's tiles."""
    queries, keys = [], []
    for tile in tiles:
        step = -1 if tile.shape == "upper" else 1
        queries.append(tile.q[::step])
        keys.append(tile.k[::step])
    spans = Spans.from_lengths([*map(len, queries)] * batch, [*map(len, keys)] * batch, device)
    spans = replace(spans, causal=tiles[0].shape != "full")
    if tiles[0].shape == "near" and isinstance(region, Near):
        spans = replace(spans, before=region.width - 1)  # the width includes the query's own key
    return Round(index_runs(queries, device), index_runs(keys, device), spans)


class Bands(torch.autograd.Function):
    """Attention over rounds of tiles, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, v: Tensor, layout: Layout, layer: int, kernel: SpanKernel, *keys: Tensor
    ) -> Tensor:
        """Run every round and merge it into the rows it covers."""
        wide = torch.promote_types(v.dtype, torch.float32)
        batch, heads, n_q, width = q.shape
        out = torch.zeros(batch, n_q, heads, width, dtype=wide, device=q.device)
        lse = torch.full((batch, n_q, heads), -torch.inf, dtype=wide, device=q.device)
        for band, rounds in enumerate(arrange_rounds(layout, batch, kernel.windows)):
            rotated = layout.rotate_queries(q, band, layer, v.dtype).transpose(1, 2)
            for queries, seen, spans in rounds:
                k_part, v_part = (take(x.transpose(1, 2), seen) for x in (keys[layout.key_of_band[band]], v))
                merge_round(out, lse, queries, *kernel.forward(take(rotated, queries), k_part, v_part, spans))
        out = out.to(v.dtype)
        ctx.layout, ctx.layer, ctx.kernel = layout, layer, kernel
        ctx.save_for_backward(q, v, out, lse, *keys)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients of all rounds, from the full rows' output and log-sum-exp."""
        q, v, out, lse, *keys = ctx.saved_tensors
        layout, kernel = ctx.layout, ctx.kernel
        factor = layout.logit_factor(ctx.layer, layout.q_rotations[0].cos_B1TH.dtype)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        # Sums of many rounds are kept in float32 or wider, and rounded once at the end.
        dk, dv = [zeros_tokens_first(k, lse.dtype) for k in keys], zeros_tokens_first(v, lse.dtype)
        for band, rounds in enumerate(arrange_rounds(layout, len(q), kernel.windows)):
            rotation = layout.q_rotations[band].tokens_first()
            key = layout.key_of_band[band]
            rotated = layout.rotate_queries(q, band, ctx.layer, v.dtype).transpose(1, 2)
            dq_rotated = zeros_tokens_first(q, lse.dtype)
            for queries, seen, spans in rounds:
                k_part, v_part = (take(x.transpose(1, 2), seen) for x in (keys[key], v))
                grad_part, q_part, out_part, lse_part = (
                    take(x, queries) for x in (grads[0].transpose(1, 2), rotated, out, lse)
                )
                grads_part = kernel.backward(grad_part, q_part, k_part, v_part, out_part, lse_part.T, spans)
                for total, tokens, part in zip((dq_rotated, dk[key], dv), (queries, seen, seen), grads_part):
                    add(total, tokens, part)
            # The rotation is linear and orthogonal: gradients of rotated queries are summed over the rounds, then
            # turned back once, by the negative angle.
            dq_band = Rotation(rotation.cos_B1TH, -rotation.sin_B1TH).rotate(dq_rotated)
            if factor is not None:
                dq_band = dq_band * factor[:, :, None, None]
            dq += dq_band.transpose(1, 2)
        v_grad, *k_grads = (x.transpose(1, 2).to(v.dtype) for x in (dv, *dk))
        return dq.to(q.dtype), v_grad, None, None, None, *k_grads


def zeros_tokens_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocate zeros (B, T, N, H) for a gradient of (B, N, T, H)."""
    return torch.zeros_like(x.transpose(1, 2), dtype=dtype, memory_format=torch.contiguous_format)


def merge_round(out: Tensor, lse: Tensor, rows: TokenIndex, part: Tensor, part_lse: Tensor) -> None:
    """Merge a round's output (n, N, H) and log-sum-exp (N, n) into those of its rows, (B, T, N, H) and (B, T, N)."""
    # A row that no tile has covered yet has -inf, so that its weight is exp(-inf - total) = 0. The part's own value is
    # finite, because every query of a tile sees a key in it: no weight is nan.
    added = part_lse.T
    before = take(lse, rows)
    total = torch.logaddexp(before, added)
    put(out, rows, take(out, rows) * (before - total).exp()[..., None] + part * (added - total).exp()[..., None])
    put(lse, rows, total)
