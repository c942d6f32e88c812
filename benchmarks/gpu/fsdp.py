"""The small run once more under FSDP, killed at a checkpoint and resumed: times, and the losses of the whole run."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.gpu.fits import Fit
from benchmarks.gpu.sizes import SMALL
from benchmarks.gpu.small_run import whole
from benchmarks.gpu.stage import Case, Options, Skipped
from lab.config import load_experiment


def sharded(options: Options) -> Fit:
    """Name the run that is killed."""
    return Fit(options, SMALL, "fsdp", {**options.size.small, "train.strategy": "fsdp"})


def kill(options: Options) -> dict[str, Any]:
    """Start it and kill it."""
    fit = sharded(options)
    fit.clear()
    return fit.kill_at_checkpoint()


def resume(options: Options) -> dict[str, Any]:
    """Resume it, and compare the losses with those of the run that was not interrupted, step by step.

    Raises: Skipped where either has nothing to go on from.
    """
    fit, other = sharded(options), whole(options).metrics()
    steps = load_experiment(SMALL, options.size.small).train.steps
    if len(other) < steps:
        raise Skipped(f"the small run has {len(other)} of {steps} steps to compare with; use --only 'small run,fsdp'")
    fit.find_checkpoint()
    seconds = fit.run("--resume")
    pairs = list(zip(other, fit.metrics(), strict=True))
    return {
        "resumed_run_s": seconds,
        "steps": len(pairs),
        "largest_loss_difference": max(abs(one["loss"] - other["loss"]) for one, other in pairs),
        "largest_grad_norm_difference": max(abs(one["grad_norm"] - other["grad_norm"]) for one, other in pairs),
    }


def cases(options: Options) -> list[Case]:
    """List both parts."""
    return [("killed at a checkpoint", partial(kill, options)), ("resumed", partial(resume, options))]
