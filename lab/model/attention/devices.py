"""Which kind of device a tensor is on; kernels are chosen by this alone, so that tests can emulate a GPU."""

from __future__ import annotations

import torch


def kind(device: torch.device) -> str:
    """Return the type of the device, such as cpu or cuda."""
    return device.type
