"""Fill the compiler's cache before anything is timed: an update of a model of one layer, with and without recompute."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.sizes import LARGE, LARGE_4K
from benchmarks.gpu.stage import Case, Options
from benchmarks.gpu.training import measure

ONE = {"model.n_layers": 1}  # the graphs of all layers are the same


def cases(options: Options) -> list[Case]:
    """List the graphs that the other stages need."""
    runs = {
        LARGE.stem: (LARGE, ONE),
        LARGE_4K.stem: (LARGE_4K, ONE),
        "recompute": (LARGE, {**ONE, "train.recompute": True}),
    }
    return [(name, partial(measure, options, *change, updates=1)) for name, change in runs.items()]
