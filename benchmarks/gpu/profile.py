"""Where an update's time goes, by operation, and where the host waits for the device; a model at a time."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from benchmarks.gpu.sizes import LARGE, ROOT
from benchmarks.gpu.stage import Case, Options, Skipped
from benchmarks.gpu.training import measure
from benchmarks.timing import best_device, wait

TOP = 15
WAITED = "called a synchronizing CUDA operation"  # torch's warning; turning them on gives another one


@contextmanager
def profiled(found: dict[str, Any]) -> Iterator[None]:
    """List the operations that take the most of the device's own time."""
    on_gpu = torch.cuda.is_available()
    with torch_profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        yield
        wait(best_device())
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    events = sorted(profiler.key_averages(), key=lambda event: getattr(event, own), reverse=True)
    total = sum(getattr(event, own) for event in events)
    found["ms"] = total / 1e3
    found["top"] = [
        {
            "operation": event.key[:80],
            "calls": event.count,
            "ms": getattr(event, own) / 1e3,
            "share": getattr(event, own) / total,
        }
        for event in events[:TOP]
    ]


@contextmanager
def watched(found: dict[str, Any]) -> Iterator[None]:
    """Count the calls that make the host wait for the device, by the line that makes them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = Counter(place(w) for w in caught if str(w.message).startswith(WAITED))
    found["waits"] = places.total()
    found["places"] = dict(places.most_common(TOP))


def place(warning: warnings.WarningMessage) -> str:
    """Name the line that a warning points at, without the folders of this machine."""
    path = Path(warning.filename)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{name}:{warning.lineno}"


def update(options: Options, watch: Callable[[dict[str, Any]], AbstractContextManager[None]]) -> dict[str, Any]:
    """Watch an update.

    Raises: Skipped on a CPU, for which nothing waits.
    """
    if watch is watched and not torch.cuda.is_available():
        raise Skipped("no CUDA device to wait for")
    found: dict[str, Any] = {}
    trained = measure(options, LARGE, updates=1, around=watch(found))
    return {"micro_batches": trained["micro_batches"], **found}


def cases(options: Options) -> list[Case]:
    """List both."""
    return [("operations", partial(update, options, profiled)), ("synchronisations", partial(update, options, watched))]
