"""What the device is, and its measured roofs: matrix product and memory."""

from __future__ import annotations

import subprocess
from typing import Any

import torch

from benchmarks import roofline
from benchmarks.gpu.stage import Case, Options
from benchmarks.timing import best_device

QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def driver() -> str:
    """Read the driver's version, "unknown" where the system does not tell."""
    try:
        return subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def describe(part: int) -> dict[str, Any]:
    """Measure the roofs and name the device."""
    device = best_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # a CPU may have no instructions for bfloat16
    figures = {"dtype": str(dtype).removeprefix("torch."), **roofline.measured(device, dtype, part).figures()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures |= {
            "driver": driver(),
            "cuda": torch.version.cuda,
            "memory_gib": properties.total_memory / 2**30,
            "capability": f"{properties.major}.{properties.minor}",
        }
    return figures


def cases(options: Options) -> list[Case]:
    """List the one measurement."""
    return [("speeds", lambda: describe(options.size.roof_part))]
