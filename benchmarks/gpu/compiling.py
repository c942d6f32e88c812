"""Fill the compiler's cache before anything is timed: an update of a model of one layer."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.sizes import LARGE, LARGE_4K
from benchmarks.gpu.stage import Case, Options
from benchmarks.gpu.training import measure

ONE = {"model.n_layers": 1}  # the graphs of all layers are the same


def cases(options: Options) -> list[Case]:
    """List the graphs that the other stages need."""
    return [(config.stem, partial(measure, options, config, ONE, updates=1)) for config in (LARGE, LARGE_4K)]
