"""Needle tests of the 1.49B model as a probe of a run makes them, against the device's roofline."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import torch

from benchmarks import probe, roofline
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.stage import Case, Options
from benchmarks.timing import best_device


def measure(size: Size, length: int) -> dict[str, Any]:
    """Time the tests of one length."""
    model, _, tests, budget = size.probe
    device = best_device()
    speed = roofline.measured(device, torch.bfloat16 if device.type == "cuda" else torch.float32, size.roof_part)
    return probe.measure(Namespace(model=model, tests=tests, budget=budget, turns=1), length, speed)


def cases(options: Options) -> list[Case]:
    """List the lengths."""
    size = options.size
    return [(f"{n:,}", partial(measure, size, n)) for n in size.probe[1]]
