"""The kind of device a tensor is on. Kernels are chosen by this function alone, so that tests can emulate a GPU."""

from __future__ import annotations

import importlib.util
import shutil

import torch
from torch import Tensor


def kind(device: torch.device) -> str:
    """Return the type of the device, such as cpu or cuda."""
    return device.type


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for what is queued there."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def compiles() -> bool:
    """Return whether torch.compile finds what it calls for a GPU: Triton and a C compiler."""
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
