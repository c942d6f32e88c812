"""Time calls on a GPU or a CPU."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Spent:
    """Seconds of a call in each turn, of the process and of the clock."""

    cpu_s: list[float]
    wall_s: list[float]


def in_turns(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, turns: int, *, each: int = 1, warm_up: int = 1
) -> dict[str, Spent]:
    """Measure calls in turns, every other one backwards, after `warm_up` turns; a turn makes each call `each` times."""
    spent = {name: Spent([], []) for name in calls}
    for turn in range(-warm_up, turns):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            wait(device)
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(each):
                calls[name]()
            wait(device)
            if turn >= 0:
                spent[name].cpu_s.append(time.process_time() - cpu)
                spent[name].wall_s.append(time.perf_counter() - wall)
    return spent


def ratio(own: list[float], base: list[float]) -> float:
    """Return the median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(own, base, strict=True))
