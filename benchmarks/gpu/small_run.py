"""Train configs/h200_small.yaml for a few steps by `lab.fit`, with its probe and checkpoints."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.fits import Fit
from benchmarks.gpu.sizes import SMALL
from benchmarks.gpu.stage import Case, Options

WARM_UP = 3  # steps left out of the speed


def whole(options: Options) -> Fit:
    """Name the run that is not interrupted."""
    return Fit(options, SMALL, "small", options.size.small)


def train(options: Options) -> dict[str, Any]:
    """Train and read the metrics."""
    fit = whole(options)
    fit.clear()
    seconds = fit.run()
    lines = fit.metrics()
    attention = [line for line in fit.log.read_text(encoding="utf-8").splitlines() if line.startswith("attention:")]
    return {
        "parameters": options.size.small_model().n_parameters(),
        "attention": attention[0] if attention else None,
        "run_s": seconds,
        "steps": len(lines),
        "tokens_per_s": statistics.median(line["tokens_per_s"] for line in lines[WARM_UP:]),
        "mfu": lines[-1]["mfu"],
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
    }


def cases(options: Options) -> list[Case]:
    """List the one run."""
    return [("whole", lambda: train(options))]
