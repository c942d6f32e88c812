"""Kernels for causal attention, one function per backend, on queries and keys already rotated, and their choice.

Every function takes q (B, N, Tq, H), k and v (B, K, Tk, H) and the layout of the packed row, or None for plain causal
rows whose queries are aligned with the last keys, and returns (B, N, Tq, H). Packed rows have B = 1 and Tq = Tk.
Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention
from torch.nn import functional as F

from lab.errors import ConfigError, MissingPackage
from lab.model.attention import devices
from lab.model.attention.segments import Segments, Spans
from lab.model.attention.span_kernels import HALF, HEAD_MULTIPLE, WIDEST_HEAD, Flash, repeated

FLASH_3 = "flash_attn_interface"  # FlashAttention 3, flash-attn's folder hopper/, from torch 2.11 on
HOPPER = 9  # major compute capability
FAULTS = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)  # of another version's package


@cache
def activate(device: torch.device) -> str | None:
    """Put FlashAttention 3 in place of 2 within torch's own operators, once; return in one line why not, or None."""
    if not hasattr(attention, "restore_flash_attention_impl"):
        return f"torch {torch.__version__} has no place for it"
    major, minor = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        return f"it runs on compute capability {HOPPER}.0, this GPU has {major}.{minor}"
    try:
        attention.activate_flash_attention_impl("FA3")
        trial(own_gpu() if device == torch.device("cuda") else device)
    except FAULTS as error:
        if attention.current_flash_attention_impl() == "FA3":
            attention.restore_flash_attention_impl()
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def own_gpu() -> torch.device:
    """Return the GPU of this rank, which the trainer has not set yet; on any other this process would hold memory."""
    rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
    return torch.device("cuda", int(rank) % max(torch.cuda.device_count(), 1))


def trial(device: torch.device) -> None:
    """Run both passes on a few tokens, since torch calls the package by its positional arguments."""
    x, spans = torch.zeros(8, 1, 64, dtype=torch.bfloat16, device=device), Spans.of([8], [8], device)
    out, lse = Flash().forward(x, x, x, spans)
    Flash().backward(x, x, x, x, out, lse, spans)


Backend = Callable[[Tensor, Tensor, Tensor, Segments | None], Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
    """Run torch's scaled dot-product attention, packed rows segment by segment.

    Measured on CPUs, one call per segment beats padded batches of segments and a dense mask at all windows; the split
    and the concatenation keep the backward pass free of full-size zeros, which slicing would add per segment.
    """
    if segments is None:
        return sdpa_rows(q, k, v)
    sizes = [*segments.lengths, segments.n_tokens - segments.n_real]
    key_sizes = sizes
    if segments.anchors is not None:  # short segments only: with a dense mask the hidden half is computed too
        k, v, key_sizes = k[:, :, segments.key_places], v[:, :, segments.key_places], list(segments.spans.k_lengths)
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


def in_spans(kernel: Callable[[Tensor, Tensor, Tensor, Spans], Tensor]) -> Backend:
    """Wrap a variable-length kernel on (T, N, H): each row is a span, padding is returned as zeros."""

    def run(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
        batch, heads, tokens, width = q.shape
        if segments is None:
            if tokens == 1:
                return sdpa_rows(q, k, v)
            spans = row_spans(batch, tokens, k.shape[2], q.device)
        elif segments.lengths:
            spans = segments.spans
        else:
            return torch.zeros_like(q)
        n_real = batch * tokens if segments is None else segments.n_real
        q_TNH = q.transpose(1, 2).flatten(0, 1)[:n_real]
        k_TNH, v_TNH = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
        if segments is not None:
            k_TNH, v_TNH = (keys_of(x, segments) for x in (k_TNH, v_TNH))
        out_TNH = kernel(q_TNH, k_TNH, v_TNH, spans)
        out_TNH = F.pad(out_TNH, (0, 0, 0, 0, 0, batch * tokens - n_real))
        return out_TNH.view(batch, tokens, heads, width).transpose(1, 2)

    return run


def keys_of(x_TNH: Tensor, segments: Segments) -> Tensor:
    """Take the keys of all spans; the gradient of a key taken twice is added without a sort, unlike in indexing."""
    return x_TNH[: segments.n_real] if segments.anchors is None else x_TNH.index_select(0, segments.key_places)


def row_spans(batch: int, n_q: int, n_k: int, device: torch.device) -> Spans:
    """Make each row of a batch a span, without waiting for the device."""
    rows = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return Spans(rows * n_q, rows * n_k, (n_q,) * batch, (n_k,) * batch)


def varlen_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """Call torch's own variable-length attention, which supports grouped heads from torch 2.12 on."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"window_size": (-1, 0)}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    out = varlen_attn(q, k, v, *spans.arguments, **options)
    assert isinstance(out, Tensor), "the log-sum-exp is returned on request only"
    return out


def flash_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """Call flash-attn's variable-length kernel."""
    from flash_attn import flash_attn_varlen_func

    out: Tensor = flash_attn_varlen_func(q, k, v, *spans.arguments, causal=True)
    return out


def xformers_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """Call xformers' memory-efficient attention under a block-diagonal causal bias."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalCausalFromBottomRightMask

    bias = BlockDiagonalCausalFromBottomRightMask.from_seqlens(
        list(spans.q_lengths), list(spans.k_lengths), device=q.device
    )
    k, v = repeated(k, q), repeated(v, q)
    out: Tensor = memory_efficient_attention(q[None], k[None], v[None], attn_bias=bias)[0]
    return out


BACKENDS: dict[str, Backend] = {
    "sdpa": sdpa,
    "varlen": in_spans(varlen_kernel),
    "flash": in_spans(flash_kernel),
    "xformers": in_spans(xformers_kernel),
}
MASKED_ROWS = 512  # tokens up to which a segment and its anchor run faster under a dense mask than as tiles, measured
HALF_ONLY = ("flash", "varlen")  # these run bands by torch's flash attention, which returns the log-sum-exp
TILED = ("sdpa", *HALF_ONLY)
SPANS = ("varlen", "flash", "xformers")  # one call for all segments of a row
PACKAGES = {"flash": "flash_attn", "xformers": "xformers.ops"}


def choose(backend: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Choose the backend for `auto`, or check the named one; return its name and the reason.

    Raises: MissingPackage for a package that is not installed, ConfigError for a backend that cannot run here.
    """
    if backend != "auto":
        check(backend, device, dtype)
        return backend, "set in the config"
    if devices.kind(device) != "cuda":
        return "sdpa", f"the fastest exact one on {device.type}"
    if dtype not in HALF:
        return "sdpa", f"the variable-length kernels take float16 or bfloat16, not {named(dtype)}"
    fault = activate(device) if installed(FLASH_3) else ""
    if fault is None:
        return "varlen", "torch's variable-length kernel is FlashAttention 3's"
    left_out = fault and f"; FlashAttention 3 is left out: {fault}"
    fault = import_fault("flash_attn") if installed("flash_attn") else ""
    if fault is not None:
        why = f"cannot be imported ({fault})" if fault else "is not installed"
        return "varlen", f"flash-attn {why}; torch's variable-length kernel is used{left_out}"
    return "flash", f"flash-attn is installed{left_out}"


@cache
def installed(package: str) -> bool:
    """Return whether a package is installed, looked up once."""
    return importlib.util.find_spec(package) is not None


@cache
def import_fault(module: str) -> str | None:
    """Import a module, once, and return in one line why that failed; None if it did not.

    A package built for another torch, CUDA or Python is installed but fails on import: a library or symbol is missing,
    or its version check fails.
    """
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def named(dtype: torch.dtype) -> str:
    """Return a dtype's name without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def check(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise an error, in one line, for a backend that cannot run here."""
    module = PACKAGES.get(backend)
    package = module.partition(".")[0] if module else None
    if package and not installed(package):
        raise MissingPackage(package, f"train.backend={backend} (backend: auto would go without)", "gpu")
    if backend not in (*BACKENDS, "reference"):
        names = ", ".join(["auto", "reference", *BACKENDS])
        raise ConfigError(f"train.backend={backend}: unknown attention backend; use one of: {names}")
    if backend not in ("sdpa", "reference") and devices.kind(device) != "cuda":
        raise ConfigError(
            f"train.backend={backend}: runs on a CUDA device only, not on {device.type}; use sdpa or auto"
        )
    if backend in HALF_ONLY and dtype not in HALF:
        raise ConfigError(
            f"train.backend={backend}: takes float16 or bfloat16, not {named(dtype)}; use sdpa, auto or half precision"
        )
    fault = import_fault(module) if module else None
    if fault:
        raise ConfigError(
            f"train.backend={backend}: {package} is installed but cannot be imported ({fault}); "
            f"build it for torch {torch.__version__} or use auto"
        )


def runs_heads(backend: str, width: int) -> bool:
    """Return whether a backend's kernel takes heads of this width."""
    return backend not in HALF_ONLY or (width % HEAD_MULTIPLE == 0 and width <= WIDEST_HEAD)
