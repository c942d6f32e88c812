"""Where a training step's time goes, by operation, and where the host waits for the device."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Case, Options, Skipped, run
from benchmarks.gpu.training import WARM_UP, Setting, prepared
from benchmarks.timing import best_device, wait
from lab.model.config import DecoderConfig

STEPS, TOP = 3, 15


def operations(cfg: DecoderConfig, setting: Setting) -> dict[str, Any]:
    """Profile a few steps and list the operations that take the most of the device's own time."""
    device = best_device()
    _, step, _ = prepared(cfg, setting)
    for _ in range(WARM_UP):
        step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with torch_profile(activities=activities) as profiler:
        for _ in range(STEPS):
            step()
        wait(device)
    own = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    events = sorted(profiler.key_averages(), key=lambda event: getattr(event, own), reverse=True)
    total = sum(getattr(event, own) for event in events)
    top = [
        {
            "operation": event.key[:80],
            "calls_per_step": event.count / STEPS,
            "ms_per_step": getattr(event, own) / 1e3 / STEPS,
            "share": getattr(event, own) / total,
        }
        for event in events[:TOP]
    ]
    return {"steps": STEPS, "ms_per_step": total / 1e3 / STEPS, "top": top}


def synchronisations(cfg: DecoderConfig, setting: Setting) -> dict[str, Any]:
    """Count the calls of a step that make the host wait for the device, by line of our code.

    Raises: Skipped on a CPU.
    """
    if not torch.cuda.is_available():
        raise Skipped("no CUDA device to wait for")
    _, step, _ = prepared(cfg, setting)
    for _ in range(WARM_UP):
        step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for _ in range(STEPS):
            step()
        torch.cuda.set_sync_debug_mode("default")
    places = Counter(place(w) for w in caught if "synchroniz" in str(w.message))
    return {"steps": STEPS, "per_step": places.total() / STEPS, "places": dict(places.most_common(TOP))}


def place(warning: warnings.WarningMessage) -> str:
    """Name the line that a warning points at, without the folders of this machine."""
    path = Path(warning.filename)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{name}:{warning.lineno}"


def cases(options: Options) -> list[Case]:
    """List both."""
    size = options.size
    cfg, setting = size.large_model(), Setting(size.pack, size.window, size.steps)
    return [
        ("operations", partial(operations, cfg, setting)),
        ("synchronisations", partial(synchronisations, cfg, setting)),
    ]


if __name__ == "__main__":
    run(cases)
