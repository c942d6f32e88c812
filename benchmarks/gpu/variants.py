"""Train the model of configs/tiny_2k.yaml with a setting changed at a time, by every backend, at the longest window."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.sizes import LARGE
from benchmarks.gpu.stage import Case, Options
from benchmarks.gpu.training import measure
from lab.model.attention.kernels import WHOLE

CHANGES = {
    **{f"backend {name}": {"train.backend": name} for name in WHOLE},
    "not compiled": {"train.compile": False},
    "autocast": {"train.strategy": "single"},
    "recompute": {"train.recompute": True},
}


def cases(options: Options) -> list[Case]:
    """List the changes."""
    longest = options.size.longest
    changes = {f"window {longest['data.window']:,}": longest, **CHANGES}
    return [(name, partial(measure, options, LARGE, change, updates=2)) for name, change in changes.items()]
