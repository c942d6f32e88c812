"""Set the CPU threads of this process; apart from lab.train.processes, so that evaluations start without Lightning."""

from __future__ import annotations

import os

import torch

from lab.launch import Launch, own_cores


def set_threads(threads: int | None, launch: Launch | None = None) -> int:
    """Set the number of CPU threads of this process, by default one for each of its own cores, and return it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    chosen = threads or (cores if launch is None else own_cores(launch, os.environ, cores))
    torch.set_num_threads(chosen)
    if launch is not None and launch.world_size > 1:
        os.environ["OMP_NUM_THREADS"] = str(chosen)  # otherwise Lightning's launcher sets its own number
    return chosen
