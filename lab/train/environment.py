"""A run's environment: commit, uncommitted changes, versions, hardware."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "lightning", "numpy", "tokenizers", "flash-attn", "xformers")
ROOT = Path(__file__).resolve().parents[2]


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


@cache
def commit() -> str:
    """Return the commit of the running code, "unknown" outside a repository."""
    return git("rev-parse", "HEAD") or "unknown"


def processor(device: torch.device) -> str:
    """Name what a device computes on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


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
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Name the processor and the GPUs."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "gpus": gpus}


def cpu_name() -> str:
    """Read the processor's name, "unknown" where the system has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
