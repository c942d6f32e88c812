"""One attention function for every backend, position method and mask; all are tested against the dense reference.

The backend, the layout and the tensors' sizes choose the kernel:

    reference                                     by definition, from the matrix of relative positions
    sdpa, varlen, flash, xformers                 one causal call per row or segment, for a method of one band
    flash_bands, efficient_bands, cpu_bands       the bands in rounds of tiles, merged by log-sum-exp
    dense                                         pair by pair, for ids and masks that cannot be cut into tiles

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Query head n reads key-value head n // (N / K).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lab.errors import ConfigError, DataError
from lab.masks import MASKS
from lab.model.attention import backends, devices
from lab.model.attention.bands import attend_bands
from lab.model.attention.cache import KeyCache
from lab.model.attention.dense import attend_dense, reference
from lab.model.attention.layout import Layout, document_segments, first_ids
from lab.model.attention.segments import Visibility
from lab.model.attention.span_kernels import CpuFlash, Efficient, Flash, suits
from lab.positions import Distance, Frequencies
from lab.positions import distance as make_distance
from lab.positions import frequencies as make_frequencies

Kernel = Callable[[Tensor, list[Tensor], Tensor, Layout, int], Tensor]


def attend_whole(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int, backend: str) -> Tensor:
    """Attend by one call of a backend's causal kernel."""
    return backends.BACKENDS[backend](layout.rotate_queries(q, 0, layer, v.dtype), keys[0], v, layout.segments)


KERNELS: dict[str, Kernel] = {
    "reference": lambda q, keys, v, layout, layer: reference(q, keys[0], v, layout, layer),
    **{name: partial(attend_whole, backend=name) for name in backends.BACKENDS},
    "flash_bands": partial(attend_bands, kernel=Flash()),
    "efficient_bands": partial(attend_bands, kernel=Efficient()),
    "cpu_bands": partial(attend_bands, kernel=CpuFlash()),
    "dense": attend_dense,
}


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel's name in KERNELS, the layout it attends under, and the dtype of its keys and values."""

    kernel: str
    layout: Layout
    dtype: torch.dtype

    def keys(self, k: Tensor) -> list[Tensor]:
        """Rotate keys once per key map; the reference takes unrotated keys.

        Shapes: (B, K, Tk, H), each of the results too.
        """
        if self.kernel == "reference":
            return [k]
        return [rotation.rotate(k).to(self.dtype) for rotation in self.layout.k_rotations]

    def run(self, q: Tensor, keys: list[Tensor], v: Tensor, layer: int) -> Tensor:
        """Attend.

        Shapes: q (B, N, Tq, H), not rotated; keys, as `keys` returns them, and v (B, K, Tk, H); returns (B, N, Tq, H)
            in the dtype of v.
        """
        return KERNELS[self.kernel](q, keys, v.to(self.dtype), self.layout, layer).to(v.dtype)


def plan_for(backend: str, layout: Layout, q: Tensor, v: Tensor) -> Plan:
    """Plan attention for such queries and values; v may lack those in a cache.

    Raises: ConfigError for a backend that is unknown, unavailable or cannot run the layout; MissingPackage.
    """
    name = backends.choose(backend, q.device, v.dtype)[0]
    if name == "reference":
        return Plan(name, layout, v.dtype)
    whole, fits = runs_whole(layout), backends.runs_heads(name, q.shape[3])
    tiled = layout.starts is not None and name in backends.TILED
    if not (name == "sdpa" or (fits and (tiled or whole))):
        if backend != "auto":
            what = f"distance={layout.distance.method}" if layout.starts is not None else "these ids or this mask"
            raise ConfigError(
                f"backend={name}: cannot run {what if fits else f'head_dim={q.shape[3]}'}; use sdpa or reference"
            )
        name = "sdpa"
    on_cpu = devices.kind(v.device) == "cpu"
    bands = "cpu_bands" if on_cpu else None
    if suits(v):
        bands = "efficient_bands" if name == "sdpa" else "flash_bands"
    if whole and (bands is None or name != "sdpa" or not in_tiles(layout, q)):
        kernel = name
    else:
        kernel = bands if bands is not None and (whole or layout.starts is not None) else "dense"
    # on a CPU float32 even for bfloat16 is exact and, measured, faster
    return Plan(kernel, layout, torch.promote_types(q.dtype, torch.float32) if on_cpu else v.dtype)


def runs_whole(layout: Layout) -> bool:
    """Return whether one causal call per row or segment is enough: one band, visibility by order alone."""
    by_order = layout.segments is not None or layout.starts is not None or layout.visible.by_order
    return layout.distance.is_plain and by_order


def in_tiles(layout: Layout, q: Tensor) -> bool:
    """Return whether tiles are faster than sdpa on a row: chunks, long anchored segments, on a GPU all segments."""
    segments = layout.segments
    if segments is None:
        return layout.starts is not None and 1 < q.shape[2] < layout.k_pos.shape[-1]
    if devices.kind(q.device) == "cuda":
        return True
    return segments.anchors is not None and segments.max_length > backends.MASKED_ROWS


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

    Without ids, keys have positions 0 .. Tk - 1 and queries the last Tq of them. A query sees a key when the mask's
    predicate holds and the key's id is not above its own, or the key is the anchor. `layout` replaces ids, methods
    and mask with ones prepared for all layers of a forward pass. Under the document and anchor masks a row of padding
    (document -1) is returned as zeros; the causal mask ignores documents.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tk, H); q_pos (Tq,) or (B, Tq); k_pos (Tk,) or (B, Tk); doc_ids (B, Tk);
        returns (B, N, Tq, H) in the dtype of v.
    Raises: ConfigError for an unknown or unavailable backend or mask; DataError for shapes that do not fit.
    Source: arXiv:2410.18745, Eq. 1 and section 2.1.
    """
    check_shapes(q, k, v, mask, q_pos=q_pos, k_pos=k_pos, doc_ids=doc_ids)
    batch, docs = len(q), None
    if layout is None:
        docs = None if mask == "causal" or doc_ids is None else torch.atleast_2d(doc_ids).expand(batch, -1)
        methods = frequencies or make_frequencies("rope", head_dim=q.shape[-1]), distance or make_distance("plain")
        layout = make_layout(q, k, (q_pos, k_pos), docs, mask, backend != "reference", methods)
    if layout.segments is not None and batch > 1:  # rows end to end: (B, N, T, H) to (1, N, B * T, H)
        q, k, v = (x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for x in (q, k, v))
    plan = plan_for(backend, layout, q, v)
    out = plan.run(q, plan.keys(k), v, layer)
    if layout.segments is None or docs is None:
        return out
    rows = out.transpose(1, 2).unflatten(1, (batch, -1))[0].transpose(1, 2)
    return torch.where((docs >= 0)[:, None, :, None], rows, 0.0)


def make_layout(
    q: Tensor,
    k: Tensor,
    ids: tuple[Tensor | None, Tensor | None],
    docs: Tensor | None,
    mask: str,
    packs: bool,
    methods: tuple[Frequencies, Distance],
) -> Layout:
    """Build a layout; the ids determine whether rows are regular and, with `packs`, packed documents."""
    q_pos, k_pos = ids
    given = q_pos is not None or k_pos is not None
    k_pos = torch.arange(k.shape[2], device=k.device) if k_pos is None else k_pos
    if q_pos is None:
        q_pos = k_pos if q.shape[2] == k.shape[2] else k_pos[..., k.shape[2] - q.shape[2] :]
    packs = packs and mask == "document"
    segments = document_segments(q_pos, k_pos, docs) if packs and docs is not None else None
    if segments is not None:
        flat = k_pos.expand(len(q), -1).reshape(-1)
        return Layout.of(flat, flat, *methods, q.dtype, segments=segments, starts=first_ids(flat, segments))
    visible = Visibility(q.shape[2], k.shape[2], q.device)
    starts: tuple[int, ...] | None = (0,)
    if given or mask != "causal":
        q_ids, k_ids = torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)
        visible = Visibility(q.shape[2], k.shape[2], q.device, mask, docs, q_ids, k_ids)
        aligned = mask == "causal" and torch.equal(q_ids, k_ids[:, k.shape[2] - q.shape[2] :].expand_as(q_ids))
        starts = first_ids(k_pos, None) if aligned else None
    return Layout.of(q_pos, k_pos, *methods, q.dtype, starts=starts, visible=visible)


def attend_cached(q: Tensor, k: Tensor, v: Tensor, *, layer: int, plan: Plan, cache: KeyCache) -> Tensor:
    """Attend from new tokens to all cached ones and to themselves, and append them to the cache.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tq, H), not rotated; returns (B, N, Tq, H) in the dtype of v.
    """
    keys, values = cache.extend(layer, k, v, plan.layout.k_rotations, plan.dtype)
    if not cache.n_maps:
        keys = plan.keys(keys[0])
    return plan.run(q, keys, values, layer).to(v.dtype)


def check_shapes(q: Tensor, k: Tensor, v: Tensor, mask: str, **ids: Tensor | None) -> None:
    """Raise an error, in one line, for shapes that do not fit together, or a mask without its documents."""
    if mask not in MASKS:
        raise ConfigError(f"mask={mask}: unknown mask; use one of: {', '.join(MASKS)}")
    if mask != "causal" and ids["doc_ids"] is None:
        raise ConfigError(f"mask={mask}: needs doc_ids, the document of each token; pass doc_ids or use mask: causal")
    fits = q.ndim == k.ndim == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or q.shape[1] % k.shape[1] or q.shape[2] > k.shape[2]:
        raise DataError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: k and v must match, batch and head_dim be "
            "those of q, key-value heads divide query heads, and there must be a key for every query"
        )
    for name, given in ids.items():
        tokens = q.shape[2] if name == "q_pos" else k.shape[2]
        if given is not None and given.shape not in {(tokens,), (1, tokens), (q.shape[0], tokens)}:
            raise DataError(
                f"{name} {tuple(given.shape)}: must be ({tokens},) or ({len(q)}, {tokens}), one id per token"
            )
