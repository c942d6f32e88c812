"""The kind of device a tensor is on. Kernels are chosen by this function alone, so that tests can emulate a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def kind(device: torch.device) -> str:
    """Return the type of the device, such as cpu or cuda."""
    return device.type


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for what is queued there."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
