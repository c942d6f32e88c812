"""Train the models of configs/tiny_2k.yaml and tiny_4k.yaml as runs do: ms per micro-batch and per update."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.sizes import LARGE, LARGE_4K
from benchmarks.gpu.stage import Case, Options, run
from benchmarks.gpu.training import measure


def cases(options: Options) -> list[Case]:
    """List the configs."""
    return [(config.stem, partial(measure, options, config)) for config in (LARGE, LARGE_4K)]


if __name__ == "__main__":
    run(cases)
