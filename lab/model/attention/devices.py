"""Which kind of device a tensor is on; every choice between kernels asks here, so that tests can answer for a GPU."""

from __future__ import annotations

import torch


def kind(device: torch.device) -> str:
    """Return the type of the device, such as cpu or cuda."""
    return device.type
