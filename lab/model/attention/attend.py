"""One attention function for every backend, position method and mask; the dense reference judges all others.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Query head n reads key-value head n // (N / K).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.errors import ConfigError, DataError
from lab.masks import MASKS
from lab.model.attention import backends, devices, fused
from lab.model.attention.cache import KeyCache
from lab.model.attention.flex import attend_flex
from lab.model.attention.kernels import CpuFlash, Matmul, grouped, one_query, suits_one_query
from lab.model.attention.layout import Layout, document_segments, first_ids
from lab.model.attention.reference import reference
from lab.model.attention.rounds import attend_rounds
from lab.model.attention.segments import Segments
from lab.model.attention.tiles import attend_tiles
from lab.model.attention.visibility import Visibility
from lab.positions import Distance, Frequencies
from lab.positions import distance as make_distance
from lab.positions import frequencies as make_frequencies

DENSE_ROWS = 256  # query rows whose logits the dense path holds at one time


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    frequencies: Frequencies | None = None,
    distance: Distance | None = None,
    layer: int = 0,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    doc_ids: Tensor | None = None,
    mask: str = "causal",
    backend: str = "auto",
    layout: Layout | None = None,
) -> Tensor:
    """Attend from un-rotated queries to un-rotated keys under a frequency method, a distance method and a mask.

    Without ids, keys stand at 0 .. Tk - 1 and queries at the last Tq of them. A query sees a key when the mask's
    predicate holds and the key's id is not above its own, or the key is the anchor. `layout` replaces ids, methods
    and mask with ones prepared for all layers of a forward pass. Under the document and anchor masks a row of padding
    (document -1) comes back as zeros; the causal mask knows no documents.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tk, H); q_pos (Tq,) or (B, Tq); k_pos (Tk,) or (B, Tk); doc_ids (B, Tk);
        returns (B, N, Tq, H) in the dtype of v.
    Raises: ConfigError for an unknown or unavailable backend or mask; DataError for shapes that do not fit.
    Source: arXiv:2410.18745, Eq. 1 and section 2.1.
    """
    check_shapes(q, k, v, q_pos, k_pos, doc_ids, mask)
    name = backends.choose(backend, q.device, v.dtype)[0]
    if layout is None:
        doc_ids = None if mask == "causal" or doc_ids is None else torch.atleast_2d(doc_ids).expand(len(q), -1)
        frequencies = frequencies or make_frequencies("rope", head_dim=q.shape[-1])
        distance = distance or make_distance("plain")
        if doc_ids is not None and mask == "document" and name != "reference":
            ids = default_positions(q, k, q_pos, k_pos)
            segments = document_segments(*ids, doc_ids)
            if segments is not None:
                out = attend_documents(q, k, v, ids[1], segments, frequencies, distance, layer, backend)
                return torch.where((doc_ids >= 0)[:, None, :, None], out, 0.0)
        layout = lay_out(q, k, q_pos, k_pos, doc_ids, mask, frequencies, distance)
    if name == "reference":
        return reference(q, k, v, layout, layer)
    if backend == "auto" and not has_kernel(layout, name, q.shape[3]):
        name = "sdpa"
    dtype = kernel_dtype(q, v)
    keys = [rotation.rotate(k).to(dtype) for rotation in layout.k_rotations]
    return attend_rotated(q, keys, v.to(dtype), layout, layer, name).to(v.dtype)


def lay_out(
    q: Tensor,
    k: Tensor,
    q_pos: Tensor | None,
    k_pos: Tensor | None,
    doc_ids: Tensor | None,
    mask: str,
    frequencies: Frequencies,
    distance: Distance,
) -> Layout:
    """Prepare the layout of rows that are not packed, telling from the ids whether they are regular."""
    given = q_pos is not None or k_pos is not None
    q_pos, k_pos = default_positions(q, k, q_pos, k_pos)
    starts: Sequence[int] | None = None
    visible = Visibility(q.shape[2], k.shape[2], q.device)
    if given or mask != "causal":
        ids = (torch.atleast_2d(q_pos), torch.atleast_2d(k_pos))
        visible = Visibility(q.shape[2], k.shape[2], q.device, mask, doc_ids, *ids)
        if mask == "causal" and torch.equal(ids[0], ids[1][:, k.shape[2] - q.shape[2] :].expand_as(ids[0])):
            starts = first_ids(k_pos, None)
    else:
        starts = (0,)
    return Layout.of(q_pos, k_pos, frequencies, distance, q.dtype, starts=starts, visible=visible)


def attend_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pos: Tensor,
    segments: Segments,
    frequencies: Frequencies,
    distance: Distance,
    layer: int,
    backend: str,
) -> Tensor:
    """Run a batch of rows of contiguous documents as one packed row."""
    shape = q.shape
    ids = k_pos.expand(shape[0], -1).reshape(-1)
    layout = Layout.of(ids, ids, frequencies, distance, q.dtype, segments=segments, starts=first_ids(ids, segments))
    q, k, v = (x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for x in (q, k, v))
    out = attend(q, k, v, layer=layer, backend=backend, layout=layout)
    return out.transpose(1, 2).reshape(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def attend_cached(
    q: Tensor, k: Tensor, v: Tensor, *, layer: int, backend: str, layout: Layout, cache: KeyCache
) -> Tensor:
    """Attend from new tokens to all that the cache holds and to themselves, and add them to it.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tq, H), not rotated; returns (B, N, Tq, H) in the dtype of v.
    """
    name = backends.choose(backend, q.device, v.dtype)[0]
    if backend == "auto" and not has_kernel(layout, name, q.shape[3]):
        name = "sdpa"
    dtype = v.dtype if name == "reference" else kernel_dtype(q, v)
    keys, values = cache.extend(layer, k, v, layout.k_rotations, dtype)
    if name == "reference":
        return reference(q, keys[0], values, layout, layer)
    if not cache.n_maps:
        keys = [rotation.rotate(keys[0]).to(dtype) for rotation in layout.k_rotations]
    return attend_rotated(q, keys, values, layout, layer, name).to(v.dtype)


def attend_rotated(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int, name: str) -> Tensor:
    """Attend with keys that are rotated already, once per key map, by the fastest way the layout allows.

    Shapes: q (B, N, Tq, H), not rotated; keys and v (B, K, Tk, H) of one dtype; returns (B, N, Tq, H) in it.
    Raises: ConfigError for a backend that cannot run the layout.
    """
    if name == "flex":
        return attend_flex(q, keys, v, layout, layer)
    if not has_kernel(layout, name, q.shape[3]):
        what = f"distance={layout.distance.method}" if layout.starts is not None else "these ids or this mask"
        what = what if backends.runs_heads(name, q.shape[3]) else f"head_dim={q.shape[3]}"
        raise ConfigError(f"backend={name}: cannot run {what}; use sdpa, flex or reference")
    if runs_whole(layout):
        if name == "sdpa" and in_tiles(q, v, layout):
            return attend_bands(q, keys, v, layout, layer, name)
        if name == "sdpa" and layout.segments is None and suits_one_query(q, v):
            return one_query(rotated_queries(q, layout, 0, layer, v.dtype), keys[0], v)[0]
        return backends.BACKENDS[name](rotated_queries(q, layout, 0, layer, v.dtype), keys[0], v, layout.segments)
    if layout.starts is None:
        return attend_dense(q, keys, v, layout, layer)
    return attend_bands(q, keys, v, layout, layer, name)


def attend_bands(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int, name: str) -> Tensor:
    """Attend band by band: on a GPU in rounds of tiles by the backend's kernel, elsewhere tile by tile."""
    if fused.suits(v):
        kernel = fused.Efficient() if name == "sdpa" else fused.Flash()
        return attend_rounds(q, keys, v, layout, layer, kernel)
    on_cpu = devices.kind(q.device) == "cpu"
    return attend_tiles(q, keys, v, layout, layer, CpuFlash() if on_cpu else Matmul())


def in_tiles(q: Tensor, v: Tensor, layout: Layout) -> bool:
    """Tell whether tiles are faster than one call with a mask: for long anchored segments and chunks on a CPU."""
    segments = layout.segments
    if devices.kind(q.device) != "cpu":
        return False
    if segments is not None:
        return segments.anchors is not None and segments.max_length > backends.MASKED_ROWS
    return layout.starts is not None and 1 < q.shape[2] < v.shape[2]


def runs_whole(layout: Layout) -> bool:
    """Tell whether one causal kernel call per row or segment does: one band, visibility by order alone."""
    by_order = layout.segments is not None or layout.starts is not None or layout.visible.by_order
    return layout.distance.is_plain and by_order


def has_kernel(layout: Layout, name: str, width: int) -> bool:
    """Tell whether a backend can run a layout with heads of a width."""
    if name in ("sdpa", "flex", "reference"):
        return True
    tiled = layout.starts is not None and name in backends.TILED
    return backends.runs_heads(name, width) and (tiled or runs_whole(layout))


def rotated_queries(q: Tensor, layout: Layout, band: int, layer: int, dtype: torch.dtype) -> Tensor:
    """Rotate queries for a band and scale them."""
    q = layout.q_rotations[band].rotate(q)
    factor = layout.logit_factor(layer, q.dtype)
    return (q if factor is None else q * factor[:, None, :, None]).to(dtype)


def kernel_dtype(q: Tensor, v: Tensor) -> torch.dtype:
    """Choose the dtype that kernels compute in: on a CPU float32 even for bfloat16, exact and, measured, faster."""
    return torch.promote_types(q.dtype, torch.float32) if devices.kind(q.device) == "cpu" else v.dtype


def attend_dense(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend under a dense mask, choosing each pair's band, for ids and masks that no tiles describe."""
    bands = layout.distance.bands
    if len(bands) > 1:
        return attend_dense_bands(q, keys, v, layout, layer)
    query, key, seen_BQK = rotated_queries(q, layout, 0, layer, v.dtype), keys[0], layout.seen()
    if fused.suits(v):  # the fused kernel that takes a mask has no grouped heads
        key, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (key, v))
    gqa = query.shape[1] != v.shape[1]
    out = F.scaled_dot_product_attention(query, key, v, attn_mask=seen_BQK[:, None], enable_gqa=gqa)
    return torch.where(seen_BQK.any(-1)[:, None, :, None], out, 0.0)


def attend_dense_bands(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend to several bands pair by pair, with logits and weights in float32 or wider, in blocks of rows."""
    bands, wide = layout.distance.bands, torch.promote_types(v.dtype, torch.float32)
    queries = [rotated_queries(q, layout, number, layer, v.dtype) for number in range(len(bands))]
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


def default_positions(q: Tensor, k: Tensor, q_pos: Tensor | None, k_pos: Tensor | None) -> tuple[Tensor, Tensor]:
    """Fill in the ids that were left out: keys 0 .. Tk - 1, queries at the last keys."""
    k_pos = torch.arange(k.shape[2], device=k.device) if k_pos is None else k_pos
    if q_pos is None:
        q_pos = k_pos if q.shape[2] == k.shape[2] else k_pos[..., k.shape[2] - q.shape[2] :]
    return q_pos, k_pos


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor | None,
    k_pos: Tensor | None,
    doc_ids: Tensor | None,
    mask: str,
) -> None:
    """Refuse shapes that do not fit together, in one line."""
    if mask not in MASKS:
        raise ConfigError(f"mask={mask}: unknown mask; use one of: {', '.join(MASKS)}")
    if mask != "causal" and doc_ids is None:
        raise ConfigError(f"mask={mask}: needs doc_ids, the document of each token; pass doc_ids or use mask: causal")
    fits = q.ndim == k.ndim == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or q.shape[1] % k.shape[1] or q.shape[2] > k.shape[2]:
        raise DataError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: k and v must match, batch and head_dim be "
            "those of q, key-value heads divide query heads, and there must be a key for every query"
        )
    for name, ids, tokens in (
        ("q_pos", q_pos, q.shape[2]),
        ("k_pos", k_pos, k.shape[2]),
        ("doc_ids", doc_ids, k.shape[2]),
    ):
        if ids is not None and ids.shape not in {(tokens,), (1, tokens), (q.shape[0], tokens)}:
            raise DataError(
                f"{name} {tuple(ids.shape)}: must be ({tokens},) or ({q.shape[0]}, {tokens}), one id a token"
            )
