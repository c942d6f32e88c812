"""Running a distance method's bands in rounds of tiles, and merging them by log-sum-exp.

Every query attends over the keys of its tiles separately; tile t gives the output o_t and l_t, the log-sum-exp of its
logits. The whole row's output is sum_t exp(l_t - l) o_t with l = log sum_t exp(l_t). The backward pass needs no
gradient of l_t, as with the whole row's o and l every tile's weights exp(logit - l) are the row's own.

The tiles of a round belong to one band and have no query in common, so that one call runs them all. The number of
rounds depends on the method only, not on the number or length of the segments.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Source: arXiv:2410.18745, Algorithm 2, whose "sum of
the attention map" is the sum of the unnormalised exponentials; arXiv:2402.17463, section 3.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True, eq=False)
class Places:
    """Tokens of every sequence of a batch: one contiguous run, or any tokens, listed by sequence and place.

    `index` selects them from (B, T, ...), with the leading `sizes` (B, n), or (B * n,) where they are listed.
    """

    index: tuple[Any, Any]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, runs: Sequence[tuple[range, bool]], batch: int, device: torch.device) -> Places:
        """Find the tokens of runs, some in reverse order, sequence by sequence."""
        # Runs that follow each other are one slice, which is a view: nothing is gathered or copied.
        adjacent = all(a.stop == b.start for (a, _), (b, _) in itertools.pairwise(runs))
        if adjacent and not any(turned for _, turned in runs):
            run = slice(runs[0][0].start, runs[-1][0].stop)
            return cls((slice(None), run), (batch, run.stop - run.start))
        parts = [torch.arange(run.start, run.stop, device=HOST) for run, _ in runs]
        one = torch.cat([part.flip(0) if turned else part for part, (_, turned) in zip(parts, runs, strict=True)])
        sequence = torch.arange(batch, device=HOST).repeat_interleave(len(one))
        return cls((to_device(sequence, device), to_device(one.repeat(batch), device)), (len(sequence),))

    def take(self, x: Tensor) -> Tensor:
        """Gather the tokens of (B, T, ...) as (B * n, ...)."""
        return x[self.index].flatten(0, len(self.sizes) - 1)

    def put(self, x: Tensor, part: Tensor) -> None:
        """Write the tokens, each of which occurs once."""
        x[self.index] = part.unflatten(0, self.sizes)

    def add(self, x: Tensor, part: Tensor) -> None:
        """Add to the tokens of a contiguous tensor; some may occur several times."""
        sequence, place = self.index
        if isinstance(place, slice):
            x[self.index] += part.unflatten(0, self.sizes)
        else:  # no sort, unlike an accumulating index_put_
            x.flatten(0, 1).index_add_(0, sequence * x.shape[1] + place, part)


@dataclass(frozen=True, eq=False)
class Round:
    """Tiles that one call runs, span after span."""

    queries: Places
    keys: Places
    spans: Spans


def arrange_rounds(layout: Layout, batch: int, windows: bool) -> list[list[Round]]:
    """Sort the tiles of each band of a layout into rounds, once for all layers.

    A tile belongs to the first round of its shape whose queries all precede its own. An upper tile is a causal one in
    reverse order.
    """
    key = batch, windows
    if key not in layout.rounds:
        drafts: list[list[list[Tile]]] = [[] for _ in layout.bands]
        for band, tile in layout.tiles(windows):
            # first fit: tiles come in rising order of queries, so a draft's last tile is the only one to compare with
            fitting = (t for t in drafts[band] if like(t[-1]) == like(tile) and t[-1].q.stop <= tile.q.start)
            tiles = next(fitting, [])
            if not tiles:
                drafts[band].append(tiles)
            tiles.append(tile)
        layout.rounds[key] = rounds = []
        for number, of_band in enumerate(drafts):
            region = layout.bands[number].region
            rounds.append([build_round(tiles, region, batch, layout.k_pos.device) for tiles in of_band])
    return layout.rounds[key]


def like(tile: Tile) -> str:
    return "causal" if tile.shape == "upper" else tile.shape


def build_round(tiles: list[Tile], region: Region, batch: int, device: torch.device) -> Round:
    """Collect the tokens of a round's tiles."""
    queries = Places.of([(tile.q, tile.shape == "upper") for tile in tiles], batch, device)
    keys = Places.of([(tile.k, tile.shape == "upper") for tile in tiles], batch, device)
    spans = Spans.of([len(t.q) for t in tiles] * batch, [len(t.k) for t in tiles] * batch, device)
    shape = tiles[0].shape
    before = region.width - 1 if shape == "near" and isinstance(region, Near) else -1
    return Round(queries, keys, replace(spans, causal=shape != "full", before=before))


class Bands(torch.autograd.Function):
    """Attention over rounds of tiles, with the gradient of the whole."""

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
            turned = layout.rotate_queries(q, band, layer, v.dtype).transpose(1, 2)
            for part in rounds:
                k_part, v_part = (part.keys.take(x.transpose(1, 2)) for x in (keys[layout.key_of_band[band]], v))
                merge(out, lse, part.queries, *kernel.forward(part.queries.take(turned), k_part, v_part, part.spans))
        out = out.to(v.dtype)
        ctx.layout, ctx.layer, ctx.kernel = layout, layer, kernel
        ctx.save_for_backward(q, v, out, lse, *keys)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients of all rounds, with the whole rows' output and log-sum-exp."""
        q, v, out, lse, *keys = ctx.saved_tensors
        layout, kernel = ctx.layout, ctx.kernel
        factor = layout.logit_factor(ctx.layer, layout.q_rotations[0].cos_B1TH.dtype)
        grad = grads[0].transpose(1, 2)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        # Sums of many rounds are kept in float32 or wider, and rounded once at the end.
        dk, dv = [zeros_by_token(k, lse.dtype) for k in keys], zeros_by_token(v, lse.dtype)
        # a band's queries are rotated once for all its rounds; their gradients are added up while rotated and turned
        # back at the band's end, as the rotation is linear
        for band, rounds in enumerate(arrange_rounds(layout, len(q), kernel.windows)):
            rotation = layout.q_rotations[band].by_token()
            key = layout.key_of_band[band]
            turned = layout.rotate_queries(q, band, ctx.layer, v.dtype).transpose(1, 2)
            dq_band = zeros_by_token(q, lse.dtype)
            for part in rounds:
                k_part, v_part = (part.keys.take(x.transpose(1, 2)) for x in (keys[key], v))
                grad_part, q_part, out_part, lse_part = (part.queries.take(x) for x in (grad, turned, out, lse))
                grads_part = kernel.backward(grad_part, q_part, k_part, v_part, out_part, lse_part.T, part.spans)
                part.queries.put(dq_band, part.queries.take(dq_band) + grads_part[0])
                part.keys.add(dk[key], grads_part[1].to(lse.dtype))
                part.keys.add(dv, grads_part[2].to(lse.dtype))
            back = Rotation(rotation.cos_B1TH, -rotation.sin_B1TH).rotate(dq_band)
            dq += (back if factor is None else back * factor[:, :, None, None]).transpose(1, 2)
        k_grads = (x.transpose(1, 2).to(v.dtype) for x in dk)
        return dq.to(q.dtype), dv.transpose(1, 2).to(v.dtype), None, None, None, *k_grads


def zeros_by_token(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocate zeros (B, T, N, H) for a gradient of (B, N, T, H)."""
    return torch.zeros_like(x.transpose(1, 2), dtype=dtype, memory_format=torch.contiguous_format)


def merge(out: Tensor, lse: Tensor, places: Places, part: Tensor, part_lse: Tensor) -> None:
    """Merge a round's output (n, N, H) and log-sum-exp (N, n) into those of its rows, (B, T, N, H) and (B, T, N)."""
    # A row that no tile has covered yet has -inf, so that its weight is 0. The part's own value is finite, as
    # every query of a tile has a key in it: no weight is nan.
    added = part_lse.T
    before = places.take(lse)
    total = torch.logaddexp(before, added)
    weights = [(x - total).exp()[..., None] for x in (before, added)]
    places.put(out, places.take(out) * weights[0] + part * weights[1])
    places.put(lse, total)
