"""Train the model of configs/tiny_2k.yaml as runs do, and with one thing changed at a time.

Not compiled; by autocast instead of sharded over one rank; with recomputed activations; by every attention backend.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.stage import Case, Options, Skipped, run
from benchmarks.gpu.training import Setting, train
from benchmarks.timing import best_device
from lab.model.attention import backends
from lab.model.config import DecoderConfig

BACKENDS = ("flash", "varlen", "xformers", "sdpa")


def measure(cfg: DecoderConfig, setting: Setting) -> dict[str, Any]:
    """Train with a backend, unless it is the one that `auto` takes.

    Raises: Skipped, LabError.
    """
    auto, _ = backends.choose("auto", best_device(), torch.bfloat16)
    if setting.backend == auto:
        raise Skipped(f"{auto} is what auto takes")
    return train(cfg, setting)


def cases(options: Options) -> list[Case]:
    """List the settings."""
    size = options.size
    cfg, base = size.large_model(), Setting(size.pack, size.window, size.steps)
    settings = {
        "auto": base,
        "auto, not compiled": replace(base, compiled=False),
        "auto, autocast": replace(base, autocast=True),
        "auto, recompute": replace(base, recompute=True),
    }
    settings |= {backend: replace(base, backend=backend) for backend in BACKENDS}
    return [(name, partial(measure, cfg, setting)) for name, setting in settings.items()]


if __name__ == "__main__":
    run(cases)
