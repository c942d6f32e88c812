"""One attention function for every backend, position method and mask; all are tested against the dense reference.

`lab/model/attention/backends.py` lists the kernels and chooses among them.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, Q queries of a block. Query head n reads key-value head
n // (N / K).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lab import positions
from lab.core.errors import ConfigError, DataError, look_up
from lab.masks import MASKS
from lab.model.attention.backends import choose_kernel
from lab.model.attention.bands import attend_bands
from lab.model.attention.kernels import CAUSAL_KERNELS, CpuFlash, Flash
from lab.model.attention.layout import KeyCache, Layout, first_ids
from lab.model.attention.segments import dense_mask

DENSE_ROWS = 256  # query rows whose logits are stored at a time
REFERENCE_ROWS = 64  # query rows at a time, for their (rows, Tk, H/2) angles


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    frequencies: positions.Frequencies | None = None,
    distance: positions.Distance | None = None,
    layer: int = 0,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    doc_ids: Tensor | None = None,
    mask: str = "causal",
    backend: str = "auto",
) -> Tensor:
    """Attend from un-rotated queries to un-rotated keys under a frequency method, a distance method and a mask.

    Without ids, keys have positions 0 .. Tk - 1 and queries the last Tq of them. A query sees a key when the mask's
    predicate holds and the key's id is not above its own, or the key is the anchor. Under the document and anchor masks
    a row of padding (document -1) is returned as zeros; the causal mask ignores documents.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tk, H); q_pos (Tq,) or (B, Tq); k_pos (Tk,) or (B, Tk); doc_ids (B, Tk);
        returns (B, N, Tq, H) in the dtype of v.
    Raises: ConfigError for an unknown or unavailable backend or mask; DataError for shapes that do not fit.
    Source: arXiv:2410.18745, Eq. 1 and section 2.1.
    """
    check_tensors(q, k, v, mask, q_pos=q_pos, k_pos=k_pos, doc_ids=doc_ids)
    n_q, n_k = q.shape[2], k.shape[2]
    if k_pos is None:
        k_pos = torch.arange(n_k, device=k.device)
    if q_pos is None:  # one tensor for both where they are equal: rotations are then computed once
        q_pos = k_pos if n_q == n_k else k_pos[..., n_k - n_q :]
    q_ids, k_ids = torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)
    visible = starts = None
    if mask == "causal" and (q_ids == k_ids[:, n_k - n_q :]).all():
        starts = first_ids(k_pos, None)
    # With ids that count up by one, order in the row is order of ids, and fast kernels need no mask.
    if starts is None:
        docs = None
        visible = k_ids[:, None, :] <= q_ids[:, :, None]
        if mask != "causal" and doc_ids is not None:
            docs = torch.atleast_2d(doc_ids)
            if mask == "anchor":  # ids of the anchor may be above those of later documents
                visible = visible | ((docs[:, None, :] == 0) & (docs[:, n_k - n_q :, None] != 0))
        visible = visible & dense_mask(n_q, n_k, q.device, mask, docs)
    frequencies = frequencies or positions.frequencies("rope", head_dim=q.shape[-1])
    distance = distance or positions.distance("plain")
    layout = Layout(q_pos, k_pos, frequencies, distance, q.dtype, starts=starts, mask=visible)
    return attend_layout(q, k, v, layout, layer=layer, backend=backend)


def attend_layout(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    layer: int,
    backend: str,
    cache: KeyCache | None = None,
) -> Tensor:
    """Attend under ids, methods and visibility prepared for all layers, to all cached tokens too; append to the cache.

    Shapes: q (B, N, Tq, H); k, v (B, K, Tk, H), not rotated; returns (B, N, Tq, H) in the dtype of v.
    """
    # The dtype is that of the cache as well: keys are stored as the kernel reads them.
    name, dtype = choose_kernel(backend, layout, q, v)
    keys = [k]
    values = v.to(dtype)
    if cache is not None:
        keys, values = cache.extend(layer, k, v, layout.k_rotations, dtype)
    if name != "reference" and (cache is None or not cache.n_maps):
        keys = [rotation.rotate(keys[0]).to(dtype) for rotation in layout.k_rotations]
    with torch.autocast(v.device.type, enabled=False):  # it would round the logits of float32 inputs
        return KERNELS[name](q, keys, values, layout, layer).to(v.dtype)


def check_tensors(q: Tensor, k: Tensor, v: Tensor, mask: str, **ids: Tensor | None) -> None:
    """Raise an error, in one line, for shapes that do not fit together, or a mask without its documents."""
    look_up(MASKS, mask, "mask")
    if mask != "causal" and ids["doc_ids"] is None:
        raise ConfigError(f"mask={mask}: needs doc_ids, the document of each token; pass doc_ids or use mask: causal")
    fits = q.ndim == k.ndim == 4 and k.shape == v.shape == (len(q), *k.shape[1:3], q.shape[3])
    if not fits or q.shape[1] % k.shape[1] or q.shape[2] > k.shape[2]:
        raise DataError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: k and v must match, batch and head_dim be "
            "those of q, key-value heads divide query heads, and there must be a key for every query"
        )
    for name, values in ids.items():
        tokens = q.shape[2] if name == "q_pos" else k.shape[2]
        if values is not None and values.shape not in {(tokens,), (1, tokens), (q.shape[0], tokens)}:
            raise DataError(
                f"{name} {tuple(values.shape)}: must be ({tokens},) or ({len(q)}, {tokens}), one id per token"
            )


def band_logits(queries: list[Tensor], keys: list[Tensor], layout: Layout, rows: slice, columns: slice) -> Tensor:
    """Compute the logits of the queries of `rows` with the keys of `columns`, each pair's in the band that contains it.

    Shapes: queries: one (B, N, Tq, H) per band; keys: one (B, K, Tk, H) per key map; both rotated and of one dtype;
        returns (B, N, rows, columns).
    """
    q_pos = torch.atleast_2d(layout.q_pos)[:, rows, None]
    k_pos = torch.atleast_2d(layout.k_pos)[:, None, columns]
    out = None
    for band, band_queries, number in zip(layout.bands, queries, layout.key_of_band, strict=True):
        key = keys[number][:, :, columns]
        query = band_queries[:, :, rows]
        grouped = query.reshape(len(key), key.shape[1], -1, key.shape[3])  # heads of a group as rows of one
        logits = (grouped @ key.transpose(-1, -2)).reshape(*query.shape[:3], -1)
        # Regions of bands are disjoint. A pair outside all of them keeps the first band's logit; the mask hides it.
        out = logits if out is None else torch.where(band.region.contains(q_pos, k_pos)[:, None], logits, out)
    assert out is not None, "a distance method has a band"
    return out * float(queries[0].shape[-1] ** -0.5)


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Compute the weights of visible keys by softmax; 0 where none is visible."""
    # The softmax of a query that sees no key, such as padding, is nan: all of its logits are -inf.
    weights = torch.softmax(logits.masked_fill(~visible, -torch.inf), dim=-1)
    return torch.where(visible.any(-1, keepdim=True), weights, 0.0)


def attend_dense(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend under a layout's mask, with logits and weights in float32 or wider, in blocks of rows.

    Shapes: q (B, N, Tq, H), not rotated; keys: one (B, K, Tk, H) per key map, rotated; v (B, K, Tk, H); returns
        (B, N, Tq, H), zeros for a query that sees nothing.
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    # Rounded to the dtype of the values first, as every other kernel receives queries.
    queries = [layout.rotate_queries(q, band, layer, v.dtype).to(wide) for band in range(len(layout.bands))]
    keys = [k.to(wide) for k in keys]
    v_wide = v.to(wide)
    visible_B1QK = layout.visible_mask()[:, None]
    outs = []
    for start in range(0, q.shape[2], DENSE_ROWS):
        rows = slice(start, start + DENSE_ROWS)
        weights = masked_softmax(band_logits(queries, keys, layout, rows, slice(None)), visible_B1QK[:, :, rows])
        grouped = weights.reshape(len(v), v.shape[1], -1, v.shape[2])
        outs.append((grouped @ v_wide).reshape(*weights.shape[:3], -1))
    return torch.cat(outs, dim=2).to(v.dtype)


def reference(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend by definition: each pair's logit is q . R(rel_pos) k, from the matrix of relative positions itself.

    No query or key is rotated on its own. With pair (a, b) of q and (c, d) of k at angle t = rel_pos * inv_freq,
    the pair adds (a c + b d) cos t + (a d - b c) sin t. Differentiable; memory is (rows, Tk, H/2) at a time.

    Shapes: q (B, N, Tq, H); keys, one (B, K, Tk, H), and v, not rotated; returns (B, N, Tq, H) in the dtype of v.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    groups = q.shape[1] // v.shape[1]
    v_wide = v.to(dtype).repeat_interleave(groups, dim=1)
    q1, q2 = q.to(dtype).chunk(2, dim=-1)
    k1, k2 = keys[0].to(dtype).repeat_interleave(groups, dim=1).chunk(2, dim=-1)
    inv_freq = layout.frequencies.inv_freq.to(q.device)
    visible_BQK = layout.visible_mask()
    factor = layout.logit_factor(layer, dtype)
    q_pos, k_pos = torch.atleast_2d(layout.q_pos), torch.atleast_2d(layout.k_pos)
    rows = max(len(q_pos), len(k_pos))
    ids = [*zip(q_pos.expand(rows, -1), k_pos.expand(rows, -1))]
    outs = []
    for start in range(0, q.shape[2], REFERENCE_ROWS):
        part = slice(start, start + REFERENCE_ROWS)
        rel = torch.stack([layout.distance.rel_pos(m[part], n) for m, n in ids]).nan_to_num()  # of hidden pairs
        angle = rel[:, None, :, :, None] * inv_freq  # (B or 1, 1, rows, Tk, H/2)
        a, b = q1[:, :, part, None], q2[:, :, part, None]
        c, d = k1[:, :, None], k2[:, :, None]
        pairs = (a * c + b * d) * angle.cos().to(dtype) + (a * d - b * c) * angle.sin().to(dtype)
        logits = pairs.sum(-1) * q.shape[-1] ** -0.5
        if factor is not None:
            logits = logits * factor[:, None, part, None]
        outs.append(masked_softmax(logits, visible_BQK[:, None, part]) @ v_wide)
    return torch.cat(outs, dim=2).to(v.dtype)


def attend_causal(
    q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int, kernel: Callable[..., Tensor]
) -> Tensor:
    """Attend by one causal call, for methods of one band."""
    return kernel(layout.rotate_queries(q, 0, layer, v.dtype), keys[0], v, layout.segments, layout.window)


KERNELS: dict[str, Callable[[Tensor, list[Tensor], Tensor, Layout, int], Tensor]] = {
    "reference": reference,
    **{name: partial(attend_causal, kernel=kernel) for name, kernel in CAUSAL_KERNELS.items()},
    "flash_bands": partial(attend_bands, kernel=Flash()),
    "cpu_bands": partial(attend_bands, kernel=CpuFlash()),
    "dense": attend_dense,
}
"""The keys are rotated once for each key map, those of the reference not at all."""
