"""Train configs/h200_small.yaml for a few steps: does a run work at all, and how fast."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.fits import Fit
from benchmarks.gpu.sizes import SMALL
from benchmarks.gpu.stage import Case, Options, run

WARM_UP = 3  # steps left out of the speed


def single(options: Options) -> Fit:
    """Name the run on one process."""
    return Fit(options, SMALL, "small", [*options.size.small, "--train.strategy=single"])


def train(options: Options) -> dict[str, Any]:
    """Train on one process and read the metrics."""
    fit = single(options)
    seconds = fit.run("--resume")
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
    return [("single", lambda: train(options))]


if __name__ == "__main__":
    run(cases)
