"""What a run computes on: device, precision, attention backend and compiler; commit, versions and hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lab.config import Experiment
from lab.errors import ConfigError
from lab.model import devices
from lab.model.attention import backends
from lab.positions.methods import describe

PACKAGES = ("torch", "lightning", "numpy", "tokenizers", "flash-attn", "xformers")
ROOT = Path(__file__).resolve().parents[2]


def training_device(experiment: Experiment) -> torch.device:
    """Return the kind of device to train on; Lightning refuses one that is missing."""
    return torch.device("cuda" if torch.cuda.is_available() and experiment.train.accelerator != "cpu" else "cpu")


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
    wanted = experiment.train.backend
    width = experiment.model.head_dim
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
    wanted = experiment.train.compile
    if wanted is False:
        return False, "set in the config"
    if wanted == "auto" and device.type != "cuda":
        return False, "on a CPU with train.compile=true only, as it takes some seconds"
    if device.type == "cuda" and not devices.compiles():
        fault = "torch.compile needs Triton and a C compiler; install gcc"
        if wanted is True:
            raise ConfigError(f"train.compile=true: {fault}; use auto or false")
        return False, fault
    return True, "two graphs, before and after attention, for all blocks and packs"


def method_name(experiment: Experiment) -> str:
    """Name the position methods in results, as frequency+distance with the parameters that are not defaults."""
    return f"{describe(experiment.position.frequency)}+{describe(experiment.position.distance)}"


def describe_environment(seed: int, threads: int) -> dict[str, Any]:
    """Collect what is needed to reproduce the run; values that cannot be found are "unknown" or left out."""
    versions_now = {"python": platform.python_version(), **versions()}
    about = {"commit": commit(), "dirty_diff": git("diff", "HEAD"), "versions": versions_now}
    return {**about, "hardware": hardware(), "seed": seed, "threads": threads}


@cache
def commit() -> str:
    """Return the commit of the running code, "unknown" outside a repository."""
    return git("rev-parse", "HEAD") or "unknown"


def git(*arguments: str) -> str:
    """Run git on the repository of the code; empty without git or a repository."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Look up the versions of the packages that affect results."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def hardware() -> dict[str, Any]:
    """Name the processor and the GPUs."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"cpu": processor(torch.device("cpu")), "cores": os.cpu_count(), "gpus": gpus}


def processor(device: torch.device) -> str:
    """Name what a device computes on, "unknown" where the system has no name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or "unknown")
