"""Train the models of configs/tiny_2k.yaml and tiny_4k.yaml as runs do: ms per micro-batch and per update.

`dry_run_gib` is what `lab.fit --dry_run` says of the same run, without the memory that no allocator sees.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import LARGE, LARGE_4K
from benchmarks.gpu.stage import Case, Options
from benchmarks.gpu.training import experiment_of, measure, release
from lab.estimate import memory_of


def compare(options: Options, config: Path) -> dict[str, Any]:
    """Measure, and estimate the memory."""
    found = measure(options, config)
    release()
    return {**found, "dry_run_gib": memory_of(experiment_of(options, config)).total / 2**30}


def cases(options: Options) -> list[Case]:
    """List the configs."""
    return [(config.stem, partial(compare, options, config)) for config in (LARGE, LARGE_4K)]
