"""One attention function for every backend, position method and mask; the dense reference judges all others.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. Query head n reads key-value head n // (N / K).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lab.errors import ConfigError, DataError
from lab.masks import METHODS as MASKS
from lab.model import backends
from lab.model.rotary import Rotation
from lab.model.segments import Segments
from lab.positions import Distance, Frequencies
from lab.positions import distance as make_distance
from lab.positions import frequencies as make_frequencies

REFERENCE_ROWS = 64  # query rows whose (rows, Tk, H/2) angles the reference holds at one time


@dataclass(frozen=True, eq=False)
class Layout:
    """What attention needs beside q, k and v, made once per forward pass and shared by all layers.

    `segments` describes a packed row; without it a row is one causal sequence, its queries aligned with the last
    keys. Rotations are those of the queries' and the keys' ids.
    """

    q_pos: Tensor
    k_pos: Tensor
    q_rotation: Rotation
    k_rotation: Rotation
    segments: Segments | None = None

    @classmethod
    def of(
        cls,
        q_pos: Tensor,
        k_pos: Tensor,
        frequencies: Frequencies,
        dtype: torch.dtype,
        segments: Segments | None = None,
    ) -> Layout:
        """Compute the rotations of given ids, (T,) or (B, T), in float32 or `dtype` if that is wider."""
        wide = torch.promote_types(dtype, torch.float32)
        k_rotation = Rotation.of(k_pos, frequencies.inv_freq, wide)
        q_rotation = k_rotation if q_pos is k_pos else Rotation.of(q_pos, frequencies.inv_freq, wide)
        return cls(q_pos, k_pos, q_rotation, k_rotation, segments)


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
    predicate holds and the key's id is not above its own, or the key is the anchor. `layout` replaces the ids with
    ones prepared for all layers of a forward pass. Under the document and anchor masks a row of padding (document
    -1) comes back as zeros; the causal mask knows no documents.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tk, H); q_pos (Tq,) or (B, Tq); k_pos (Tk,) or (B, Tk); doc_ids (B, Tk);
        returns (B, N, Tq, H) in the dtype of v.
    Raises: ConfigError for an unknown or unavailable backend or mask; DataError for shapes that do not fit.
    Source: papers/string.txt, Eq. 1 and section 2.1; methods.md section 1.
    """
    check_shapes(q, k, v, q_pos, k_pos, doc_ids, mask)
    doc_ids = None if mask == "causal" or doc_ids is None else torch.atleast_2d(doc_ids).expand(len(q), -1)
    frequencies = frequencies or make_frequencies("rope", head_dim=q.shape[-1])
    distance = distance or make_distance("plain")
    name = backend if backend == "reference" else backends.choose(backend, q.device, v.dtype)[0]
    if layout is not None:
        segments, by_ids = layout.segments, False
        doc_ids, mask = (None, "causal") if segments is None else (segments.doc_ids[None], "document")
    else:
        by_ids = True
        given = q_pos is not None or k_pos is not None
        q_pos, k_pos = default_positions(q, k, q_pos, k_pos)
        layout = Layout.of(q_pos, k_pos, frequencies, q.dtype)
        if name != "reference" and (given or mask != "causal"):
            segments = document_segments(layout, doc_ids) if mask == "document" and doc_ids is not None else None
            if segments is not None and doc_ids is not None:
                out = attend_documents(q, k, v, layout, frequencies, layer, name, segments)
                return torch.where((doc_ids >= 0)[:, None, :, None], out, 0.0)
            if name != "sdpa" and backend != "auto":
                raise ConfigError(f"backend={backend}: cannot run mask={mask} with these ids; use sdpa or reference")
            visible = dense_mask(layout, q.shape[2], k.shape[2], doc_ids, mask, by_ids)
            return masked(q, k, v, layout, frequencies, layer, visible)
    if name == "reference":
        visible = dense_mask(layout, q.shape[2], k.shape[2], doc_ids, mask, by_ids)
        return reference(q, k, v, layout, frequencies, distance, layer, visible)
    out_dtype = v.dtype
    q, k, v = rotated(q, k, v, layout, frequencies, layer)
    return backends.BACKENDS[name](q, k, v, layout.segments).to(out_dtype)


def attend_documents(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, frequencies: Frequencies, layer: int, name: str, segments: Segments
) -> Tensor:
    """Run a batch of rows of contiguous documents as one packed row."""
    out_dtype, shape = v.dtype, q.shape
    q, k, v = rotated(q, k, v, layout, frequencies, layer)
    q, k, v = (x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for x in (q, k, v))
    out = backends.BACKENDS[name](q, k, v, segments).to(out_dtype)
    return out.transpose(1, 2).view(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def document_segments(layout: Layout, doc_ids: Tensor) -> Segments | None:
    """Describe rows of documents as segments of one packed row, or return None where they cannot be.

    They can when each document is one run of tokens with rising ids. Padding (-1) becomes segments of its own.
    """
    rising = torch.ones_like(doc_ids, dtype=torch.bool)
    k_pos = layout.k_pos.expand_as(doc_ids) if layout.k_pos.ndim == 1 else layout.k_pos
    same = doc_ids[:, 1:] == doc_ids[:, :-1]
    rising[:, 1:] = ~same | (doc_ids[:, 1:] < 0) | (k_pos[:, 1:] > k_pos[:, :-1])
    starts = torch.ones_like(rising)
    starts[:, 1:] = ~same
    once = all(len(row[start]) == len(row[start].unique()) for row, start in zip(doc_ids, starts & (doc_ids >= 0)))
    if not once or not bool(rising.all()) or layout.q_pos is not layout.k_pos:
        return None
    bounds = [*starts.flatten().nonzero().flatten().tolist(), doc_ids.numel()]
    lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
    return Segments.from_lengths(lengths, doc_ids.numel(), doc_ids.device)


def rotated(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, frequencies: Frequencies, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys and scale the queries, leaving all three in the dtype the kernel is best at.

    On a CPU that is the rotation's float32 even under bfloat16 autocast: exact and, measured, faster.
    """
    q, k = layout.q_rotation.rotate(q), layout.k_rotation.rotate(k)
    if frequencies.scales_logits:
        factor = frequencies.logit_factor(layout.q_pos, layer).to(q.dtype)
        q = q * (factor if factor.ndim == 2 else factor[None])[:, None, :, None]
    dtype = q.dtype if q.device.type == "cpu" else v.dtype
    return q.to(dtype), k.to(dtype), v.to(dtype)


def masked(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, frequencies: Frequencies, layer: int, visible_BQK: Tensor
) -> Tensor:
    """Run torch's attention under a dense mask, for ids and masks that no kernel's own layout describes."""
    out_dtype = v.dtype
    q, k, v = rotated(q, k, v, layout, frequencies, layer)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible_BQK[:, None], enable_gqa=q.shape[1] != k.shape[1]
    )
    return torch.where(visible_BQK.any(-1)[:, None, :, None], out, 0.0).to(out_dtype)


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    frequencies: Frequencies,
    distance: Distance,
    layer: int,
    visible_BQK: Tensor,
) -> Tensor:
    """Attend by definition: each pair's logit is q . R(rel_pos) k, from the matrix of relative positions itself.

    No query or key is rotated on its own. With pair (a, b) of q and (c, d) of k at angle t = rel_pos * inv_freq,
    the pair adds (a c + b d) cos t + (a d - b c) sin t. Differentiable; memory is (rows, Tk, H/2) at a time.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    groups = q.shape[1] // k.shape[1]
    k, v_wide = (x.to(dtype).repeat_interleave(groups, dim=1) for x in (k, v))
    q1, q2 = q.to(dtype).chunk(2, dim=-1)
    k1, k2 = k.chunk(2, dim=-1)
    inv_freq = frequencies.inv_freq.to(q.device)
    outs = []
    for start in range(0, q.shape[2], REFERENCE_ROWS):
        part = slice(start, start + REFERENCE_ROWS)
        rel = relative_positions(layout, distance, part)
        angle = rel[:, None, :, :, None] * inv_freq  # (B or 1, 1, rows, Tk, H/2)
        a, b = q1[:, :, part, None], q2[:, :, part, None]
        c, d = k1[:, :, None], k2[:, :, None]
        pairs = (a * c + b * d) * angle.cos().to(dtype) + (a * d - b * c) * angle.sin().to(dtype)
        factor = frequencies.logit_factor(layout.q_pos, layer).to(dtype)
        factor = (factor if factor.ndim == 2 else factor[None])[:, None, part, None]
        logits = pairs.sum(-1) * factor * q.shape[-1] ** -0.5
        seen = visible_BQK[:, None, part]
        weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1)
        outs.append(torch.where(seen.any(-1, keepdim=True), weights, 0.0) @ v_wide)
    return torch.cat(outs, dim=2).to(v.dtype)


def relative_positions(layout: Layout, distance: Distance, part: slice) -> Tensor:
    """Ask the distance method for its matrix, (B or 1, rows, Tk), for the query rows of `part`."""
    q_pos, k_pos = (x if x.ndim == 2 else x[None] for x in (layout.q_pos, layout.k_pos))
    rows = max(len(q_pos), len(k_pos))
    q_pos, k_pos = q_pos.expand(rows, -1), k_pos.expand(rows, -1)
    return torch.stack([distance.rel_pos(m[part], n) for m, n in zip(q_pos, k_pos, strict=True)])


def dense_mask(layout: Layout, n_q: int, n_k: int, doc_ids: Tensor | None, mask: str, by_ids: bool) -> Tensor:
    """Build the boolean mask (B or 1, Tq, Tk) of a predicate, with padding (document -1) seeing nothing.

    `by_ids` also hides keys whose id is above the query's, except the anchor's.
    """
    device = layout.k_pos.device
    k_index = torch.arange(n_k, device=device)
    q_index = k_index[n_k - n_q :]
    docs = torch.zeros(1, n_k, dtype=torch.int64, device=device) if doc_ids is None else doc_ids.to(device)
    q_doc, k_doc = docs[:, n_k - n_q :, None], docs[:, None, :]
    visible = MASKS[mask].visible(q_index[:, None], k_index[None, :], q_doc, k_doc) & (q_doc >= 0) & (k_doc >= 0)
    if not by_ids:
        return visible
    q_pos, k_pos = (x if x.ndim == 2 else x[None] for x in (layout.q_pos, layout.k_pos))
    ordered = k_pos[:, None, :] <= q_pos[:, :, None]
    across = (k_doc == 0) & (q_doc != k_doc) if mask == "anchor" else torch.zeros_like(visible)
    return visible & (ordered | across)


def default_positions(q: Tensor, k: Tensor, q_pos: Tensor | None, k_pos: Tensor | None) -> tuple[Tensor, Tensor]:
    """Fill in the ids that were left out: keys 0 .. Tk - 1, queries at the last keys."""
    k_pos = torch.arange(k.shape[2], device=k.device) if k_pos is None else k_pos
    if q_pos is None:
        q_pos = k_pos if q.shape[2] == k.shape[2] else k_pos[..., k.shape[2] - q.shape[2] :]
    return q_pos, k_pos


@cache
def mask_names() -> str:
    """List the masks for messages."""
    return ", ".join(MASKS)


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
        raise ConfigError(f"mask={mask}: unknown mask; use one of: {mask_names()}")
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
