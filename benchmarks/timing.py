"""Time calls on a GPU or a CPU."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lab.model.devices import processor


def best_device() -> torch.device:
    """Choose a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def heading(device: torch.device) -> str:
    """Name the device, torch's version and the threads, for the heading of a table."""
    return f"{processor(device)}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: torch.device) -> float:
    """Measure one call in seconds."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def median_s(call: Callable[[], Any], device: torch.device, times: int) -> float:
    """Measure several calls after one that warms up, and return the median in seconds."""
    return statistics.median([timed(call, device) for _ in range(times + 1)][1:])


def in_turns(calls: Mapping[str, Callable[[], Any]], device: torch.device, turns: int) -> dict[str, list[float]]:
    """Measure several calls in turns after one turn that warms up; return the seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            spent = timed(call, device)
            if turn:
                seconds[name].append(spent)
    return seconds


def ratio(own: list[float], base: list[float]) -> float:
    """Return the median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(own, base, strict=True))
