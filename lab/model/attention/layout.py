"""The inputs of attention besides q, k and v, built once per forward pass and shared by all layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lab.model.attention.context import ContextGroup
from lab.model.attention.rotary import Rotation
from lab.model.attention.segments import GivenMask, Segments, Visibility
from lab.positions import Distance, Frequencies
from lab.positions.regions import Near, Tile

PositionMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Layout:
    """Ids, rotations and visibility of one forward pass.

    A row is one causal sequence, its queries aligned with the last keys, or it is packed: `segments` holds where
    its segments begin. `starts` holds the first id of each segment, or of the row, where ids count up by one from it,
    and is None where they do not; then `visible` decides pair by pair. With a `context` the hidden states are those of
    this rank's tokens, and all else here is of the whole row.

    Shapes: q_pos (Tq,) or (B, Tq); k_pos (Tk,) or (B, Tk); one query rotation per band, one key rotation per distinct
        key map, of the keys that are not rotated yet.
    """

    q_pos: Tensor
    k_pos: Tensor
    frequencies: Frequencies
    distance: Distance
    q_rotations: tuple[Rotation, ...]
    k_rotations: tuple[Rotation, ...]
    key_of_band: tuple[int, ...]
    segments: Segments | None
    starts: tuple[int, ...] | None
    seen_by: Visibility | GivenMask | None  # None: what the segments imply
    context: ContextGroup | None = None

    @classmethod
    def of(
        cls,
        q_pos: Tensor,
        k_pos: Tensor,
        frequencies: Frequencies,
        distance: Distance,
        dtype: torch.dtype,
        *,
        segments: Segments | None = None,
        starts: Sequence[int] | None = None,
        visible: Visibility | GivenMask | None = None,
        n_rotated: int = 0,
    ) -> Layout:
        """Compute the rotations in float32, or in `dtype` if that is wider; `n_rotated` first keys need none."""
        wide = torch.promote_types(dtype, torch.float32)
        bands = distance.bands
        key_maps = list(dict.fromkeys(band.k_map for band in bands))
        made: dict[tuple[PositionMap, int], Rotation] = {}
        new_k_pos = k_pos[..., n_rotated:] if n_rotated else k_pos

        def rotation(place: PositionMap, positions: Tensor) -> Rotation:
            key = (place, id(positions))
            if key not in made:
                made[key] = Rotation.of(place(positions), frequencies.inv_freq, wide)
            return made[key]

        return cls(
            q_pos,
            k_pos,
            frequencies,
            distance,
            tuple(rotation(band.q_map, q_pos) for band in bands),
            tuple(rotation(key_map, new_k_pos) for key_map in key_maps),
            tuple(key_maps.index(band.k_map) for band in bands),
            segments,
            None if starts is None else tuple(starts),
            visible,
        )

    def queries(self, part: slice, n_keys: int) -> Layout:
        """Restrict the layout of a causal row to some queries, the last aligned with key number `n_keys`."""
        assert self.segments is None, "the queries of a packed row are never restricted"
        q_pos = self.q_pos[..., part]
        return replace(
            self,
            q_pos=q_pos,
            k_pos=self.k_pos[..., :n_keys],
            q_rotations=tuple(rotation.at(part) for rotation in self.q_rotations),
            seen_by=Visibility(q_pos.shape[-1], n_keys, self.k_pos.device),
        )

    @property
    def n_past(self) -> int:
        """Number of keys before those of the new tokens."""
        return self.k_pos.shape[-1] - self.q_pos.shape[-1]

    def step(self, n_past: int) -> Layout:
        """Return the layout of a forward pass over one of the new tokens, with the `n_past` keys before it.

        It shares this layout's rotations. The keys before it must be rotated already.
        """
        part = slice(n_past - self.n_past, n_past - self.n_past + 1)
        k_rotations = tuple(rotation.at(part) for rotation in self.k_rotations)
        return replace(self.queries(part, n_past + 1), k_rotations=k_rotations)

    @cached_property
    def visible(self) -> Visibility | GivenMask:
        """The mask, built on first use: most kernels read the segments alone."""
        if self.seen_by is not None:
            return self.seen_by
        sizes = self.q_pos.shape[-1], self.k_pos.shape[-1], self.k_pos.device
        if self.segments is None:
            return Visibility(*sizes)
        anchor = self.segments.anchor_of
        anchors = None if anchor is None else anchor[None]
        return Visibility(*sizes, "document", self.segments.doc_ids[None], anchor_of=anchors)

    @cached_property
    def rounds(self) -> dict[Any, Any]:
        """Rounds of tiles that lab/model/attention/bands.py makes once and runs in all layers."""
        return {}

    def cut(self, windows: bool) -> list[tuple[int, Tile]]:
        """Cut the bands into tiles in indices of the row, each with the number of its band.

        Ids count up by one, or the distance is plain. With `windows` a sliding window is one tile.
        """
        n_q, n_k = self.q_pos.shape[-1], self.k_pos.shape[-1]
        lengths = (n_k,) if self.segments is None else self.segments.lengths
        anchors = self.segments.anchors if self.segments is not None else None
        starts = self.starts if self.starts is not None else (0,) * len(lengths)
        assert self.starts is not None or self.distance.is_plain, "tiles are cut from consecutive ids"
        out: list[tuple[int, Tile]] = []
        place, begins = 0, {}
        for number, (length, start) in enumerate(zip(lengths, starts, strict=True)):
            keys = range(start, start + length)
            queries = keys if self.segments is not None else keys[n_k - n_q :]
            begins[place] = start
            for band_number, band in enumerate(self.distance.bands):
                region = band.region
                cut = region.window if windows and isinstance(region, Near) else region.tiles
                tiles = [t.shifted(place - queries.start, place - keys.start) for t in cut(queries, keys)]
                if anchors is not None and anchors[number] >= 0:
                    key = begins[anchors[number]]
                    seeing = region.seeing(keys, key)
                    if seeing:
                        tile = Tile(seeing, range(key, key + 1), "full")
                        tiles.append(tile.shifted(place - keys.start, anchors[number] - key))
                out += [(band_number, tile) for tile in tiles]
            place += length
        return out

    def seen(self) -> Tensor:
        """Build the boolean mask (B or 1, Tq, Tk) of what is visible and not hidden by the distance method."""
        visible = self.visible.dense()
        q_pos, k_pos = torch.atleast_2d(self.q_pos)[:, :, None], torch.atleast_2d(self.k_pos)[:, None, :]
        shown = self.distance.shows(q_pos, k_pos)
        return visible if shown is None else visible & shown

    def rotate_queries(self, q: Tensor, band: int, layer: int, dtype: torch.dtype) -> Tensor:
        """Rotate queries (B, N, Tq, H) for a band and scale them."""
        q = self.q_rotations[band].rotate(q)
        factor = self.logit_factor(layer, q.dtype)
        return (q if factor is None else q * factor[:, None, :, None]).to(dtype)

    def logit_factor(self, layer: int, dtype: torch.dtype) -> Tensor | None:
        """Return the factor on the logits of each query, (B or 1, Tq), or None if it is one."""
        factor = None
        if self.frequencies.scales_logits:
            factor = self.frequencies.logit_factor(self.q_pos, layer)
        if self.distance.scales_logits:
            own = self.distance.logit_factor(self.q_pos)
            factor = own if factor is None else factor * own
        return None if factor is None else torch.atleast_2d(factor.to(dtype))


def first_ids(ids: Tensor, segments: Segments | None) -> tuple[int, ...] | None:
    """Find the first id of each segment, or of all rows, if ids count up by one from there; None if they do not.

    Shapes: ids (T,) or (B, T); packed rows (T,) or (1, T).
    """
    ids = torch.atleast_2d(ids)
    if segments is None:
        regular = bool((ids == ids[:1, :1] + torch.arange(ids.shape[1], device=ids.device)).all())
        return (int(ids[0, 0]),) if regular and ids.numel() else None
    row, within = (x[: segments.n_real] for x in (ids[0], segments.position_ids))
    begins = [0, *itertools.accumulate(segments.lengths)][:-1]
    starts = row[torch.tensor(begins, dtype=torch.int64, device=ids.device)]
    regular = bool((row == starts[segments.doc_ids[: len(row)]] + within).all())
    return tuple(starts.tolist()) if regular else None


def document_segments(q_pos: Tensor, k_pos: Tensor, doc_ids: Tensor) -> Segments | None:
    """Describe rows of documents as segments of one packed row, or return None if that is impossible.

    Each document must be contiguous with ascending ids. Padding (-1) becomes separate segments.

    Shapes: q_pos and k_pos (T,) or (B, T); doc_ids (B, T).
    """
    if q_pos is not k_pos:
        return None
    rising = torch.ones_like(doc_ids, dtype=torch.bool)
    k_pos = k_pos.expand_as(doc_ids)
    same = doc_ids[:, 1:] == doc_ids[:, :-1]
    rising[:, 1:] = ~same | (doc_ids[:, 1:] < 0) | (k_pos[:, 1:] > k_pos[:, :-1])
    starts = torch.ones_like(rising)
    starts[:, 1:] = ~same
    once = all(len(row[start]) == len(row[start].unique()) for row, start in zip(doc_ids, starts & (doc_ids >= 0)))
    if not once or not bool(rising.all()):
        return None
    bounds = [*starts.flatten().nonzero().flatten().tolist(), doc_ids.numel()]
    lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
    return Segments.from_lengths(lengths, doc_ids.numel(), doc_ids.device)
