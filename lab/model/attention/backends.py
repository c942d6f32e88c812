"""Kernels for causal attention, one function per backend, on queries and keys already rotated.

Every function takes q (B, N, Tq, H), k and v (B, K, Tk, H) and the layout of the packed row, or None for plain causal
rows whose queries are aligned with the last keys, and returns (B, N, Tq, H). Packed rows have B = 1 and Tq = Tk.
Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.errors import ConfigError, MissingPackage
from lab.model.attention.kernels import varlen_parameters
from lab.model.attention.segments import Segments

Backend = Callable[[Tensor, Tensor, Tensor, Segments | None], Tensor]
HALF = (torch.float16, torch.bfloat16)


def sdpa(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
    """Run torch's scaled dot-product attention: plain rows at once, packed rows segment by segment.

    Measured on CPUs, one call per segment beats padded batches of segments and a dense mask at all windows; the
    split and the concatenation keep the backward pass free of full-size zeros, which slicing would add per segment.
    """
    if segments is None:
        return sdpa_rows(q, k, v)
    sizes = [*segments.lengths, segments.n_tokens - segments.n_real]
    key_sizes = sizes
    if segments.anchors is not None:  # short segments only: a dense mask computes the half that it hides
        places, ends, _ = segments.with_anchors
        k, v, key_sizes = k[:, :, places], v[:, :, places], ends.diff().tolist()
    parts = zip(q.split(sizes, dim=2), k.split(key_sizes, dim=2), v.split(key_sizes, dim=2))
    outs = [sdpa_rows(*part).transpose(1, 2) for part, _ in zip(parts, segments.lengths)]
    padding = q.new_zeros(1, sizes[-1], q.shape[1], q.shape[3])
    return torch.cat([*outs, padding], dim=1).transpose(1, 2)


def sdpa_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally with queries aligned to the last keys."""
    n_q, n_k = q.shape[2], k.shape[2]
    gqa = q.shape[1] != k.shape[1]
    if n_q == n_k:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
    if n_q == 1:  # the heads of a group become rows of one head: no key is repeated
        return F.scaled_dot_product_attention(q.reshape(len(k), k.shape[1], -1, k.shape[3]), k, v).reshape(q.shape)
    mask = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)


def packed(kernel: Callable[[Tensor, Tensor, Tensor, Segments], Tensor]) -> Backend:
    """Wrap a variable-length kernel on (T, N, H): plain rows become segments, padding comes back as zeros."""

    def run(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
        if segments is None and q.shape[2] != k.shape[2]:
            return sdpa_rows(q, k, v)  # decoding against a key cache: one query per row, nothing is packed
        batch, heads, tokens, width = q.shape
        layout = segments or Segments.from_lengths([tokens] * batch, batch * tokens, q.device)
        q_TNH, k_TNH, v_TNH = (x.transpose(1, 2).flatten(0, 1)[: layout.n_real] for x in (q, k, v))
        if layout.anchors is not None:
            places = layout.with_anchors[0]
            k_TNH, v_TNH = k_TNH[places], v_TNH[places]
        out_TNH = kernel(q_TNH, k_TNH, v_TNH, layout)
        out_TNH = F.pad(out_TNH, (0, 0, 0, 0, 0, layout.n_tokens - layout.n_real))
        return out_TNH.view(batch, tokens, heads, width).transpose(1, 2)

    return run


def varlen_kernel(q: Tensor, k: Tensor, v: Tensor, layout: Segments) -> Tensor:
    """Call torch's own variable-length attention, whose signature differs between torch 2.11 and later."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, object] = {"is_causal": True} if "is_causal" in varlen_parameters() else {"window_size": (-1, 0)}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in varlen_parameters():
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return varlen_attn(q, k, v, *cumulative(layout), **options)


def cumulative(layout: Segments) -> tuple[Tensor, Tensor, int, int]:
    """Give cumulative lengths of queries and keys and the longest of each; kernels align the last query and key."""
    cu, longest = layout.cu_seqlens, layout.max_length
    if layout.anchors is None:
        return cu, cu, longest, longest
    _, cu_k, longest_k = layout.with_anchors
    return cu, cu_k, longest, longest_k


def flash_kernel(q: Tensor, k: Tensor, v: Tensor, layout: Segments) -> Tensor:
    """Call flash-attn's variable-length kernel."""
    from flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(q, k, v, *cumulative(layout), causal=True)


def xformers_kernel(q: Tensor, k: Tensor, v: Tensor, layout: Segments) -> Tensor:
    """Call xformers' memory-efficient attention under a block-diagonal causal bias."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalCausalFromBottomRightMask

    own = layout.anchors or (-1,) * len(layout.lengths)
    with_anchor = [n + (anchor >= 0) for n, anchor in zip(layout.lengths, own, strict=True)]
    bias = BlockDiagonalCausalFromBottomRightMask.from_seqlens(list(layout.lengths), with_anchor)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    out: Tensor = memory_efficient_attention(q[None], k[None], v[None], attn_bias=bias)[0]
    return out


BACKENDS: dict[str, Backend] = {
    "sdpa": sdpa,
    "varlen": packed(varlen_kernel),
    "flash": packed(flash_kernel),
    "xformers": packed(xformers_kernel),
}
MASKED_ROWS = 512  # tokens up to which a segment and its anchor run faster under a dense mask than as tiles, measured
TILED = ("sdpa", "flash", "varlen")  # backends whose kernels return the log-sum-exp that bands are merged by
NEEDS_PACKAGE = {"flash": "flash_attn", "xformers": "xformers"}


def choose(backend: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Pick the backend that `auto` stands for, or check the named one; return its name and the reason.

    Raises: MissingPackage for a package that is not installed, ConfigError for a backend the device cannot run.
    """
    if backend != "auto":
        check(backend, device)
        return backend, "asked for"
    if device.type != "cuda":
        return "sdpa", f"the fastest exact one on {device.type}"
    if dtype not in HALF:
        return "sdpa", f"the variable-length kernels take float16 or bfloat16, not {str(dtype).removeprefix('torch.')}"
    if installed("flash_attn"):
        return "flash", "flash-attn is installed"
    return "varlen", "flash-attn is not installed; torch's own variable-length kernel serves"


@cache
def installed(package: str) -> bool:
    """Tell whether a package can be imported, looked up once."""
    return importlib.util.find_spec(package) is not None


def check(backend: str, device: torch.device) -> None:
    """Refuse a backend that cannot run here, in one line."""
    if backend in NEEDS_PACKAGE and not installed(NEEDS_PACKAGE[backend]):
        raise MissingPackage(NEEDS_PACKAGE[backend], f"train.backend={backend} (backend: auto would go without)", "gpu")
    if backend not in (*BACKENDS, "flex", "reference"):
        names = ", ".join(["auto", "reference", *BACKENDS, "flex"])
        raise ConfigError(f"train.backend={backend}: unknown attention backend; use one of: {names}")
    if backend not in ("sdpa", "flex", "reference") and device.type != "cuda":
        raise ConfigError(
            f"train.backend={backend}: runs on a CUDA device only, not on {device.type}; use sdpa or auto"
        )
