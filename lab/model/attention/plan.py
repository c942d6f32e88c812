"""Choose the kernel that attends under a layout, from the backend, the layout and the tensors' sizes.

    reference                                     by definition, from the matrix of relative positions
    sdpa, varlen, flash, xformers                 one causal call per row or segment, for a method of one band
    flash_bands, efficient_bands, cpu_bands       the bands in rounds of tiles, merged by log-sum-exp
    dense                                         pair by pair, for ids and masks that cannot be cut into tiles

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lab.errors import ConfigError
from lab.model.attention import backends, devices
from lab.model.attention.bands import attend_bands
from lab.model.attention.dense import attend_dense
from lab.model.attention.layout import Layout
from lab.model.attention.reference import reference
from lab.model.attention.span_kernels import CpuFlash, Efficient, Flash, suits

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
    if not has_kernel(layout, name, q.shape[3]):
        if backend != "auto":
            what = f"distance={layout.distance.method}" if layout.starts is not None else "these ids or this mask"
            what = what if backends.runs_heads(name, q.shape[3]) else f"head_dim={q.shape[3]}"
            raise ConfigError(f"backend={name}: cannot run {what}; use sdpa or reference")
        name = "sdpa"
    return Plan(kernel_for(name, layout, q, v), layout, v.dtype if name == "reference" else kernel_dtype(q, v))


def kernel_for(backend: str, layout: Layout, q: Tensor, v: Tensor) -> str:
    """Choose the fastest kernel for a layout."""
    if backend == "reference":
        return backend
    whole, bands = runs_whole(layout), bands_kernel(backend, v)
    if whole and (bands is None or backend != "sdpa" or not in_tiles(layout, q)):
        return backend
    return bands if bands is not None and (whole or layout.starts is not None) else "dense"


def bands_kernel(backend: str, v: Tensor) -> str | None:
    """Choose the kernel that runs bands; None where no fused one takes such values."""
    if suits(v):
        return "efficient_bands" if backend == "sdpa" else "flash_bands"
    return "cpu_bands" if devices.kind(v.device) == "cpu" else None


def has_kernel(layout: Layout, backend: str, width: int) -> bool:
    """Return whether a backend can run a layout with heads of a width."""
    if backend in ("sdpa", "reference"):
        return True
    tiled = layout.starts is not None and backend in backends.TILED
    return backends.runs_heads(backend, width) and (tiled or runs_whole(layout))


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


def kernel_dtype(q: Tensor, v: Tensor) -> torch.dtype:
    """Choose the dtype that kernels compute in: on a CPU float32 even for bfloat16, exact and, measured, faster."""
    return torch.promote_types(q.dtype, torch.float32) if devices.kind(q.device) == "cpu" else v.dtype
