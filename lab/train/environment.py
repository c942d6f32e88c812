"""A run's environment: commit, uncommitted changes, versions, hardware."""

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

PACKAGES = ("torch", "lightning", "numpy", "tokenizers", "flash-attn", "xformers")
ROOT = Path(__file__).resolve().parents[2]


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
