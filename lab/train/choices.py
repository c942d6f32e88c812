"""Choose a run's device, precision and attention backend, and name its position methods."""

from __future__ import annotations

import os
from functools import cache

import torch

from lab.config import Experiment
from lab.errors import ConfigError, first_line
from lab.model import devices
from lab.model.attention import backends
from lab.positions import frequencies
from lab.positions.methods import describe

GIB = 2**30


def training_device(experiment: Experiment) -> torch.device:
    """Return the kind of device to train on.

    Raises: ConfigError for a missing GPU.
    """
    wanted, available = experiment.train.accelerator, torch.cuda.is_available()
    if wanted == "gpu" and not available:
        raise ConfigError("train.accelerator=gpu: this machine has no CUDA device; use cpu or auto")
    if available and wanted != "cpu" and experiment.train.devices > torch.cuda.device_count():
        raise ConfigError(
            f"train.devices={experiment.train.devices}: this node has {torch.cuda.device_count()} GPUs; lower it"
        )
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def memory_of(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, or of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def computes_in_bf16(experiment: Experiment, device: torch.device) -> bool:
    """Return whether a config computes in bfloat16 on a device."""
    return experiment.train.computes_in_bf16(device.type == "cuda")


def choose_backend(experiment: Experiment, device: torch.device) -> tuple[str, str]:
    """Choose the attention backend; return its name and the reason."""
    wanted, width = experiment.train.backend, experiment.model.head_dim
    if wanted == "reference":
        return wanted, "set in the config; dense and slow, the reference for the others"
    dtype = torch.bfloat16 if computes_in_bf16(experiment, device) else torch.float32
    chosen = backends.choose(wanted, device, dtype)
    if wanted == "auto" and not backends.runs_heads(chosen[0], width):
        return "sdpa", f"{chosen[0]} takes no heads of {width}"
    return chosen


def choose_compile(experiment: Experiment, device: torch.device) -> tuple[bool, str]:
    """Choose whether blocks are compiled; return that and the reason.

    Raises: ConfigError.
    """
    compiled, reason = plan_compile(experiment, device.type)
    fault = compiler_fault(device.type) if compiled else None
    if fault is not None and experiment.train.compile is True:
        raise ConfigError(f"train.compile=true: {fault}; use auto or false")
    return (compiled, reason) if fault is None else (False, fault)


def plan_compile(experiment: Experiment, kind: str) -> tuple[bool, str]:
    """Choose whether blocks are compiled on a kind of device; return that and the reason."""
    wanted = experiment.train.compile
    if wanted is False:
        return False, "set in the config"
    if wanted == "auto" and kind != "cuda":
        return False, "on a CPU with train.compile=true only, as it takes some seconds"
    return True, "two graphs, before and after attention, for all blocks and packs"


@cache
def compiler_fault(kind: str) -> str | None:
    """Return in one line what torch.compile lacks, or None; for the CPU compile a trial function, once."""
    if kind == "cuda":
        return None if devices.compiles() else "torch.compile needs Triton and a C compiler; install gcc"
    try:
        torch.compile(torch.neg)(torch.zeros(8, device="cpu"))
    except RuntimeError as error:
        return f"torch cannot compile for this CPU ({first_line(error)}); install g++ and Python's headers"
    return None


def reductions(experiment: Experiment) -> list[str]:
    """List the position methods that change nothing at their given values."""
    frequency, distance, window = experiment.frequencies, experiment.position.distance, experiment.data.window
    rope = frequencies("rope", head_dim=experiment.model.head_dim, theta=experiment.model.theta)
    last, keys = torch.tensor([window - 1]), torch.arange(window)
    lines = []
    same = torch.equal(frequency.at_length(window).inv_freq, rope.inv_freq)
    if frequency.method != "rope" and same and bool((frequency.logit_factor(keys, layer=1 << 30) == 1).all()):
        lines.append(f"position.frequency: {describe(frequency.config)} is plain RoPE at these values")
    if not distance.is_plain and torch.equal(distance.rel_pos(last, keys), last[:, None] - keys.double()):
        lines.append(f"position.distance: {describe(distance)} is plain distance at these values")
    return lines


def method_name(experiment: Experiment) -> str:
    """Name the position methods in results, as frequency+distance with the parameters that are not defaults."""
    return f"{describe(experiment.position.frequency)}+{describe(experiment.position.distance)}"
