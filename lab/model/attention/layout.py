"""Inputs of attention besides q, k and v: the layout of a forward pass, which all layers share, and the key cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lab.model.attention.segments import HOST, ContextGroup, Segments, dense_mask
from lab.model.config import DecoderConfig, Sliding
from lab.model.devices import to_device
from lab.positions import Band, Distance, Frequencies
from lab.positions.regions import Near, Tile


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines of position * inv_freq, (B or 1, 1, T, H/2), computed once per forward pass for all layers."""

    cos_B1TH: Tensor
    sin_B1TH: Tensor

    def rotate(self, x_BNTH: Tensor) -> Tensor:
        """Rotate the pair (j, j + H/2) of each head by its angle, in the rotation's precision."""
        first, second = x_BNTH.to(self.cos_B1TH.dtype).chunk(2, dim=-1)
        cos, sin = self.cos_B1TH, self.sin_B1TH
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        # Without gradients addcmul needs fewer temporaries of the size of the queries.
        return torch.cat(
            [torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)], dim=-1
        )

    def tokens_first(self) -> Rotation:
        """Return the same rotation for tensors (B, T, N, H)."""
        return Rotation(self.cos_B1TH.transpose(1, 2), self.sin_B1TH.transpose(1, 2))


@dataclass(frozen=True, eq=False)
class Layout:
    """Ids, rotations and visibility of one forward pass.

    A row is one causal sequence whose queries are aligned with the last keys, or it is packed from `segments`.
    `starts` contains the first id of each segment, or of the row, if ids count up by one from it; else it is None.
    A `mask` decides pair by pair instead. With a `context` the hidden states are those of this rank's tokens, and
    everything else here describes the full row.

    The first `n_rotated` keys are rotated already.

    Shapes: q_pos (Tq,) or (B, Tq); k_pos (Tk,) or (B, Tk); mask bool (B or 1, Tq, Tk).
    """

    q_pos: Tensor
    k_pos: Tensor
    frequencies: Frequencies
    distance: Distance
    dtype: torch.dtype
    segments: Segments | None = None
    starts: tuple[int, ...] | None = None
    mask: Tensor | None = None
    n_rotated: int = 0
    context: ContextGroup | None = None

    @property
    def window(self) -> int | None:
        """The tokens of a sliding window if a kernel's own window covers it, else None."""
        # A kernel counts its window in tokens: ids must count up by one, and an anchor in front would use a slot.
        if isinstance(self.distance, Sliding) and self.starts is not None and not self.is_anchored:
            return self.distance.window
        return None

    @property
    def is_anchored(self) -> bool:
        return self.segments is not None and self.segments.anchors is not None

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """The bands of the distance method, made once, so that bands that share a map share the function."""
        return self.distance.bands

    @cached_property
    def key_maps(self) -> list[Callable[[Tensor], Tensor]]:
        return list(dict.fromkeys(band.k_map for band in self.bands))

    @cached_property
    def k_rotations(self) -> list[Rotation]:
        """The rotation by each key map of the keys that are not rotated yet."""
        return [self.rotation(key_map(self.k_pos[..., self.n_rotated :])) for key_map in self.key_maps]

    @cached_property
    def q_rotations(self) -> list[Rotation]:
        """The queries' rotation for each band; one that is also a key map's is computed once."""
        rotations = []
        for band in self.bands:
            # With a cache there are more keys than queries, so that a rotation of keys does not fit the queries.
            if self.q_pos is self.k_pos and band.q_map in self.key_maps:
                rotations.append(self.k_rotations[self.key_maps.index(band.q_map)])
            else:
                rotations.append(self.rotation(band.q_map(self.q_pos)))
        return rotations

    def rotation(self, positions: Tensor) -> Rotation:
        """Compute angles in float64, and round cos and sin once to float32, or to the layout's dtype if it is wider."""
        angles = torch.atleast_2d(positions)[:, None, :, None].double()
        angles = angles * to_device(self.frequencies.inv_freq, positions.device)
        dtype = torch.promote_types(self.dtype, torch.float32)
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))

    @cached_property
    def key_of_band(self) -> list[int]:
        return [self.key_maps.index(band.k_map) for band in self.bands]

    @cached_property
    def rounds(self) -> dict[object, list[Any]]:
        """Rounds of tiles that lab/model/attention/bands.py makes once and runs in all layers."""
        return {}

    def tiles(self, windows: bool) -> list[tuple[int, Tile]]:
        """Cut the bands into tiles in indices of the row, each with the number of its band.

        Ids count up by one, or the distance is plain. With `windows` a sliding window is one tile.
        """
        n_q, n_k = self.q_pos.shape[-1], self.k_pos.shape[-1]
        lengths: tuple[int, ...] = (n_k,)
        anchors = None
        if self.segments is not None:
            lengths, anchors = self.segments.lengths, self.segments.anchors
        assert self.starts is not None or self.distance.is_plain, "tiles are cut from consecutive ids"
        out: list[tuple[int, Tile]] = []
        first_ids: dict[int, int] = {}  # by the index of a segment's first token in the row
        index = 0
        for length, start, anchor in zip(
            lengths, self.starts or (0,) * len(lengths), anchors or (-1,) * len(lengths), strict=True
        ):
            # A region is defined on ids, a kernel reads indices. A segment whose first id is `start` and whose first
            # token has the index `index` is cut in ids, then shifted by index - start. A row that continues a cache
            # has fewer queries than keys: its first query has the id queries.start and the index 0.
            keys = range(start, start + length)
            queries = keys[n_k - n_q :]
            first_ids[index] = start
            for number, band in enumerate(self.bands):
                region = band.region
                cut = region.window if windows and isinstance(region, Near) else region.tiles
                for tile in cut(queries, keys):
                    out.append((number, tile.shifted(index - queries.start, index - start)))
                if anchor < 0:
                    continue
                # The anchor is one more key of the segment, from another part of the row. Its id is below those of
                # the segment, and distance decides which queries see it in this band: a tile of one column.
                sees = region.contains(torch.arange(start, keys.stop, device=HOST), first_ids[anchor])
                seeing = sees.nonzero().add(index).flatten().tolist()
                if seeing:
                    queries_seeing = range(seeing[0], seeing[-1] + 1)
                    out.append((number, Tile(queries_seeing, range(anchor, anchor + 1), "full")))
            index += length
        return out

    def visible_mask(self) -> Tensor:
        """Build the boolean mask (B or 1, Tq, Tk) of what is visible and not hidden by the distance method."""
        visible = self.mask
        if visible is None and self.segments is not None:
            visible = self.segments.mask()
        elif visible is None:
            visible = dense_mask(self.q_pos.shape[-1], self.k_pos.shape[-1], self.k_pos.device)
        q_pos, k_pos = torch.atleast_2d(self.q_pos)[:, :, None], torch.atleast_2d(self.k_pos)[:, None, :]
        return visible & self.distance.visible_pairs(q_pos, k_pos)

    def rotate_queries(self, q: Tensor, band: int, layer: int, dtype: torch.dtype) -> Tensor:
        """Rotate queries for a band and scale them by the factor on their logits."""
        q = self.q_rotations[band].rotate(q)
        factor = self.logit_factor(layer, q.dtype)
        if factor is not None:  # (f q) . k = f (q . k), so that no kernel needs to know of it
            q = q * factor[:, None, :, None]
        return q.to(dtype)

    def logit_factor(self, layer: int, dtype: torch.dtype) -> Tensor | None:
        """Return the factor on the logits of each query, (B or 1, Tq), or None if it is one."""
        if not (self.frequencies.scales_logits or self.distance.scales_logits):
            return None
        factor = self.frequencies.logit_factor(self.q_pos, layer) * self.distance.logit_factor(self.q_pos)
        return torch.atleast_2d(factor.to(dtype))


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Inputs of one layer's attention: queries and keys before rotation, and their positions."""

    layer: int
    q_BNTH: Tensor
    k_BNTH: Tensor
    layout: Layout

    def shifted(self, shift: int) -> LayerInputs:
        old = self.layout
        return replace(self, layout=replace(old, q_pos=old.q_pos + shift, k_pos=old.k_pos + shift, starts=None))


def first_ids(ids: Tensor, segments: Segments | None) -> tuple[int, ...] | None:
    """Find the first id of each segment, or of all rows, if ids (T,) or (B, T) count up by one from it, else None."""
    ids = torch.atleast_2d(ids)
    if segments is None:
        if not ids.numel() or (ids != ids[:1, :1] + torch.arange(ids.shape[1], device=ids.device)).any():
            return None
        return (int(ids[0, 0]),)
    n = segments.n_real  # ids of padding, behind it, may be anything
    starts = ids[0, :n][segments.cu_seqlens[:-1]]
    if (ids[0, :n] != starts[segments.doc_ids[:n]] + segments.position_ids[:n]).any():
        return None
    return tuple(starts.tolist())


class KeyCache:
    """Keys and values of the tokens so far, preallocated for `max_tokens`.

    Keys are stored rotated, once for each of `n_maps` key maps: in every distance method a key's position depends only
    on its id. With `n_maps` 0 they are stored unrotated, for frequencies that depend on the length and for the
    reference. The next forward pass reads and fills `rows`.

    Shapes: `store` (n_layers, keys of each map and values, B, K, max_tokens, H). `length` tokens of it are filled.
    """

    def __init__(self, cfg: DecoderConfig, batch: int, max_tokens: int, device: torch.device, *, n_maps: int) -> None:
        self.shape = (cfg.n_layers, max(n_maps, 1) + 1, batch, cfg.n_kv_heads, max_tokens, cfg.head_dim)
        self.device, self.n_maps = device, n_maps
        self.select(slice(0, batch), 0)
        self.store: Tensor | None = None  # autocast determines the dtype, which is not known before the first pass

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    def extend(
        self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor, rotations: Sequence[Rotation], dtype: torch.dtype
    ) -> tuple[list[Tensor], Tensor]:
        """Append a layer's new keys, rotated once for each key map, and values, and return all of them."""
        if self.store is None:
            self.store = torch.empty(self.shape, dtype=dtype, device=self.device)
        stop = self.length + v_BKTH.shape[2]
        assert stop <= self.shape[4], f"cache of {self.shape[4]} tokens cannot hold {stop}"
        new = [k_BKTH, v_BKTH]
        if self.n_maps:
            new = [*(rotation.rotate(k_BKTH) for rotation in rotations), v_BKTH]
        # Window and nope layers have one key map whatever the model's method has: the other slots stay unused.
        views = self.store[layer, : len(new), self.rows, :, :stop].unbind()
        # The views end at `stop`, so that the slice from `length` on takes exactly the new tokens.
        for view, tokens in zip(views, new, strict=True):
            view[:, :, self.length :] = tokens
        *keys, values = views
        return keys, values

    def select(self, rows: slice, length: int) -> None:
        """Select the rows for the next forward pass, of which `length` tokens are filled."""
        self.rows, self.length = rows, length

    def compact(self, rows: Tensor) -> None:
        """Keep some rows, int64 (n,), and move them to the front."""
        assert self.store is not None, "filled"
        # Indexing copies before the assignment, so that no row is overwritten before it is read. A loop over layers
        # and maps bounds that copy to one of them.
        for part in self.store.flatten(0, 1):
            part[: len(rows), :, : self.length] = part[rows, :, : self.length]
        self.rows = slice(0, len(rows))
