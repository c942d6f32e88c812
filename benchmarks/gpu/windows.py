"""Train the model of configs/tiny_2k.yaml at the longest window, whose activations are recomputed."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.sizes import LARGE
from benchmarks.gpu.stage import Case, Options, run
from benchmarks.gpu.training import measure


def cases(options: Options) -> list[Case]:
    """List the one window."""
    longest = options.size.longest
    return [(f"{longest['data.window']:,}", partial(measure, options, LARGE, longest, updates=2))]


if __name__ == "__main__":
    run(cases)
