"""Train the model of configs/tiny_2k.yaml at longer windows."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.stage import Case, Options, run
from benchmarks.gpu.training import Setting, train


def cases(options: Options) -> list[Case]:
    """List the windows; the longest recomputes its activations, as the long-context configs do."""
    size = options.size
    short, long = size.windows
    settings = [
        Setting(max(size.pack, short), short, size.steps),
        Setting(max(size.pack, long), long, size.steps // 4 or 1, recompute=True),
    ]
    return [(f"{s.window:,}", partial(train, size.large_model(), s)) for s in settings]


if __name__ == "__main__":
    run(cases)
