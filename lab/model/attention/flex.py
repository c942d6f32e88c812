"""FlexAttention: any mask and any ids, pair by pair, each band merged by its log-sum-exp.

Axes: B batch, T tokens, N heads, K key-value heads, H per head. On a GPU the kernel is compiled and has gradients, of
the log-sum-exp too; on a CPU it runs uncompiled, dense and without gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lab.errors import ConfigError
from lab.model.attention import devices
from lab.model.attention.block_masks import block_mask
from lab.model.attention.layout import Layout


def attend_flex(q: Tensor, keys: list[Tensor], v: Tensor, layout: Layout, layer: int) -> Tensor:
    """Attend over each band's pairs and merge.

    Shapes: q (B, N, Tq, H), not rotated; keys: one (B, K, Tk, H) per key map, rotated; v (B, K, Tk, H); returns
        (B, N, Tq, H), zeros for a query that sees nothing.
    Raises: ConfigError for gradients on a CPU.
    """
    if devices.kind(q.device) == "cpu" and torch.is_grad_enabled() and any(x.requires_grad for x in (q, v, *keys)):
        raise ConfigError("backend=flex: has no gradient on a CPU; use sdpa or auto")
    factor = layout.logit_factor(layer, layout.q_rotations[0].cos_B1TH.dtype)
    outs, lses = [], []
    for number, band in enumerate(layout.distance.bands):
        rotated = layout.q_rotations[number].rotate(q)
        if factor is not None:
            rotated = rotated * factor[:, None, :, None]
        mask = block_mask(layout, number, band, len(q))
        out, lse = run(rotated.to(v.dtype), keys[layout.key_of_band[number]], v, mask)
        outs.append(out)
        lses.append(lse)
    if len(outs) == 1:
        return outs[0]
    stacked = torch.stack(lses)
    shares = torch.softmax(stacked.masked_fill(stacked.isneginf().all(0), 0.0), dim=0)
    merged = (torch.stack(outs).to(shares.dtype) * shares[..., None]).sum(0)
    return merged.to(v.dtype)


def run(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
    """Call the kernel, compiled on a GPU."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    options = {"block_mask": mask, "enable_gqa": q.shape[1] != k.shape[1], "return_aux": AuxRequest(lse=True)}
    if devices.kind(q.device) == "cuda":
        out, aux = compiled()(q, k, v, **options)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
            out, aux = flex_attention(q, k, v, **options)
    return out, aux.lse


@cache
def compiled() -> Callable[..., Any]:
    """Compile the kernel, once in a process."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
