"""Save the 1.49B model at its first step by `lab.fit`, and resume it for one: seconds and bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.gpu.fits import Fit
from benchmarks.gpu.sizes import LARGE
from benchmarks.gpu.stage import Case, Options
from benchmarks.gpu.training import places
from lab.config import load_experiment

STEPS = 100  # more than are done


def large(options: Options) -> Fit:
    """Name the run, which saves after every step, of one micro-batch."""
    settings = options.size.large_settings(LARGE, places(options))
    tokens = load_experiment(LARGE, settings).train.micro_batch_tokens
    own = {"train.batch_tokens": tokens, "train.checkpoint_every_tokens": tokens, "train.tokens": STEPS * tokens}
    return Fit(options, LARGE, "large", settings | own)


def save(options: Options) -> dict[str, Any]:
    """Start it, and kill it at its first checkpoint."""
    fit = large(options)
    fit.clear()
    return {"parameters": options.size.large_model().n_parameters(), **fit.kill_at_checkpoint()}


def resume(options: Options) -> dict[str, Any]:
    """Resume it for one step; its files are deleted afterwards.

    Raises: Skipped without a checkpoint.
    """
    fit = large(options)
    fit.find_checkpoint()
    try:
        seconds = fit.resume_until_step(fit.metrics()[-1]["step"] + 1)
        return {"first_step_after_resume_s": seconds, "loss": fit.metrics()[-1]["loss"]}
    finally:
        fit.clear()


def cases(options: Options) -> list[Case]:
    """List both parts."""
    return [(part.__name__, partial(part, options)) for part in (save, resume)]
