"""FlashAttention 3 in place of 2 within torch's own operators, variable-length attention and its backward pass too.

Torch registers the kernels of the package flash_attn_interface (flash-attn's folder hopper/) in their place, from torch
2.11 on and for GPUs of compute capability 9.0 (H100, H200).
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch.nn import attention

from lab.model.attention.segments import Spans
from lab.model.attention.span_kernels import Flash

PACKAGE = "flash_attn_interface"
HOPPER = 9  # major compute capability
FAULTS = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)  # of another version's package


@cache
def activate(device: torch.device) -> str | None:
    """Activate the kernels, once in a process, and return None; or in one line why they are left out."""
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
