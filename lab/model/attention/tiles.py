"""Running a method's bands tile by tile and merging them by log-sum-exp.

Every query attends over the keys of its tiles separately; tile t gives the output o_t and l_t, the log-sum-exp of its
logits. The whole row's output is sum_t exp(l_t - l) o_t with l = log sum_t exp(l_t). The backward pass needs no
gradient of l_t: with the whole row's o and l every tile's weights exp(logit - l) are the row's own, and each tile
contributes its part of the gradient.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Source: arXiv:2410.18745, Algorithm 2, whose "sum of
the attention map" is the sum of the unnormalised exponentials; arXiv:2402.17463, section 3.4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.model.attention.kernels import TileKernel
from lab.model.attention.layout import Layout
from lab.positions.regions import Tile


def attend_tiles(
    q: Tensor,
    keys: list[Tensor],
    v: Tensor,
    layout: Layout,
    layer: int,
    run: type[torch.autograd.Function],
    kernel: Any,
) -> Tensor:
    """Attend over the tiles of a layout, which `run` passes to the kernel one by one or in rounds.

    Shapes: q (B, N, Tq, H), not rotated; keys: one (B, K, Tk, H) per key map, rotated; v (B, K, Tk, H); returns
        (B, N, Tq, H). A query that no tile covers, one of padding, gets zeros.
    """
    factor = layout.logit_factor(layer, layout.q_rotations[0].cos_B1TH.dtype)
    out: Tensor = run.apply(q, v, factor, layout, kernel, *keys)
    return out


class TiledAttention(torch.autograd.Function):
    """Attention over tiles, with the gradient of the whole."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, v: Tensor, factor: Tensor | None, layout: Layout, kernel: TileKernel, *keys: Tensor
    ) -> Tensor:
        """Run every tile and merge it into the rows it covers."""
        wide = torch.promote_types(v.dtype, torch.float32)
        batch, heads, n_q, width = q.shape
        out = torch.zeros(batch, n_q, heads, width, dtype=wide, device=q.device).transpose(1, 2)
        lse = torch.full((batch, heads, n_q), -torch.inf, dtype=wide, device=q.device)
        for piece in layout.tiles:
            band, tile = piece.band, piece.tile
            part, part_lse = kernel.forward(*cut(q, keys, v, factor, layout, band, tile), tile.shape != "full")
            if tile.shape == "upper":
                part, part_lse = part.flip(2), part_lse.flip(2)
            rows = slice(tile.q.start, tile.q.stop)
            if piece.first:
                out[:, :, rows], lse[:, :, rows] = part, part_lse
            else:
                merge(out[:, :, rows], lse[:, :, rows], part, part_lse)
        ctx.layout, ctx.kernel = layout, kernel
        ctx.save_for_backward(q, v, factor, out, lse, *keys)
        return out.to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients of all tiles, with the whole row's output and log-sum-exp."""
        q, v, factor, out, lse, *keys = ctx.saved_tensors
        layout, kernel = ctx.layout, ctx.kernel
        grad = grads[0].to(out.dtype)
        q_grad, v_grad = torch.zeros_like(q, dtype=out.dtype), torch.zeros_like(v, dtype=out.dtype)
        key_grads = [torch.zeros_like(k, dtype=out.dtype) for k in keys]
        for piece in layout.tiles:
            band, tile = piece.band, piece.tile
            rows, columns = slice(tile.q.start, tile.q.stop), slice(tile.k.start, tile.k.stop)
            whole = [x[:, :, rows] for x in (grad, out, lse)]
            upper = tile.shape == "upper"
            whole = [x.flip(2) for x in whole] if upper else whole
            parts = kernel.backward(
                whole[0], *cut(q, keys, v, factor, layout, band, tile), *whole[1:], tile.shape != "full"
            )
            dq, dk, dv = (x.flip(2) for x in parts) if upper else parts
            dq = layout.q_rotations[band].at(rows).rotate_back(dq)
            q_grad[:, :, rows] += dq if factor is None else dq * factor[:, None, rows, None]
            key_grads[layout.key_of_band[band]][:, :, columns] += dk
            v_grad[:, :, columns] += dv
        key_grads = [x.to(k.dtype) for x, k in zip(key_grads, keys, strict=True)]
        return q_grad.to(q.dtype), v_grad.to(v.dtype), None, None, None, *key_grads


def cut(
    q: Tensor,
    keys: tuple[Tensor, ...] | list[Tensor],
    v: Tensor,
    factor: Tensor | None,
    layout: Layout,
    band: int,
    tile: Tile,
) -> tuple[Tensor, Tensor, Tensor]:
    """Slice a tile's queries, rotated and scaled for its band, and its keys and values; upper tiles reversed."""
    rows, columns = slice(tile.q.start, tile.q.stop), slice(tile.k.start, tile.k.stop)
    q = layout.q_rotations[band].at(rows).rotate(q[:, :, rows])
    if factor is not None:
        q = q * factor[:, None, rows, None]
    k, v = keys[layout.key_of_band[band]][:, :, columns], v[:, :, columns]
    q = q.to(v.dtype)
    return (q.flip(2), k.flip(2), v.flip(2)) if tile.shape == "upper" else (q, k, v)


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a tile's output into that of its rows, in place.

    Shapes: out, part (B, N, rows, H); lse, part_lse (B, N, rows); every row of the tile sees a key.
    """
    total = torch.logaddexp(lse, part_lse)
    out.mul_((lse - total).exp_()[..., None]).addcmul_(part, (part_lse - total).exp_()[..., None])
    lse.copy_(total)
