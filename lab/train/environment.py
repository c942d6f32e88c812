"""What a run computes on: device, precision, attention backend and compiler; commit, versions and hardware."""

import os
import platform
import re
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

PACKAGES = ("torch", "lightning", "numpy", "tokenizers", "flash-attn", "xformers")
DRIVER = Path("/proc/driver/nvidia/version")
CUDA_13_DRIVER = 580  # and newer; NVIDIA's CUDA 13 release notes
OLDER_CUDA = "https://download.pytorch.org/whl/cu126"  # torch 2.13, for drivers from 525 on
ROOT = Path(__file__).resolve().parents[2]


def device_for(name: str, field: str = "--device") -> torch.device:
    """Find the device to compute on: cpu, gpu, or auto, a GPU where there is one.

    Raises: ConfigError for a GPU that is not there.
    """
    available = torch.cuda.is_available()
    if name == "gpu" and not available:
        raise ConfigError(f"{field}=gpu: no CUDA device, {driver_fault()}, or use cpu or auto")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def driver_fault() -> str:
    """Say which CUDA torch is built for, which driver is loaded, and what to do."""
    found = re.search(r"Kernel Module.*? (\d+)(\.[\d.]+)", DRIVER.read_text()) if DRIVER.exists() else None
    cuda = torch.version.cuda
    older = f"install torch by --index-url {OLDER_CUDA}"
    remedy = "see what nvidia-smi and CUDA_VISIBLE_DEVICES show"
    if found and not cuda:
        remedy = older
    elif found and cuda and int(cuda.split(".")[0]) >= 13 and int(found[1]) < CUDA_13_DRIVER:
        remedy = f"update the driver to {CUDA_13_DRIVER} or newer, {older}"
    built = f"for CUDA {cuda}" if cuda else "without CUDA"
    driver = found[1] + found[2] if found else "not loaded"
    return f"torch {torch.__version__} is built {built} and the driver is {driver}; {remedy}"


def memory_of(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, or of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def choose_backend(experiment: Experiment, device: torch.device) -> tuple[str, str]:
    """Choose the attention backend; return its name and the reason."""
    train = experiment.train
    width = experiment.model.head_dim
    dtype = torch.bfloat16 if train.bf16 else torch.float32
    name, reason = backends.choose(train.backend, device, dtype)
    if train.backend == "auto" and not backends.runs_heads(name, width):
        return "sdpa", f"{name} takes no heads of {width}"
    return name, reason


def choose_compile(experiment: Experiment, device: torch.device) -> tuple[bool, str]:
    """Choose whether blocks are compiled; return that and the reason.

    Raises: ConfigError.
    """
    wanted = experiment.train.compile
    if wanted is False:
        return False, "set in the config"
    if wanted == "auto" and device.type != "cuda":
        return False, "on a CPU with train.compile=true only, as it takes some seconds"
    if devices.compiles(device.type):
        return True, "two graphs, before and after attention, for all blocks and packs"
    needs = {"cuda": "Triton and a C compiler; install gcc", "cpu": "g++ and Python's headers; install them"}
    fault = f"torch.compile needs {needs[device.type]}"
    if wanted is True:
        raise ConfigError(f"train.compile=true: {fault}, or use auto or false")
    return False, fault


def describe_environment(seed: int, threads: int) -> dict[str, Any]:
    """Collect what is needed to reproduce the run; values that cannot be found are "unknown" or left out."""
    return {
        "commit": commit(),
        "dirty_diff": git("diff", "HEAD"),
        "versions": {"python": platform.python_version(), **versions()},
        "hardware": hardware(),
        "seed": seed,
        "threads": threads,
    }


def describe_source(model: str, consumed_tokens: int | None, method: str, device: torch.device) -> dict[str, Any]:
    """Name the model, the code and the hardware that results come from."""
    return {
        "model": model,
        "consumed_tokens": consumed_tokens,
        "commit": commit(),
        "hardware": processor(device),
        "method": method,
    }


@cache
def commit() -> str:
    """Return the commit of the running code, "unknown" outside a repository."""
    return git("rev-parse", "HEAD") or "unknown"


def git(*arguments: str) -> str:
    """Run git on the repository of the code; empty without git or a repository."""
    try:
        words = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=True)
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
