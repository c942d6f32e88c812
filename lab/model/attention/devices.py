"""The kind of device a tensor is on. Kernels are chosen by this function alone, so that tests can emulate a GPU."""

from __future__ import annotations

import torch


def kind(device: torch.device) -> str:
    """Return the type of the device, such as cpu or cuda."""
    return device.type
