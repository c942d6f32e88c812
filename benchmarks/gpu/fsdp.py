"""The small model under FSDP on one rank, killed and resumed, against one process: equal losses, and times."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gpu import small_run
from benchmarks.gpu.fits import fit, kill_at_checkpoint, metrics, words_of
from benchmarks.gpu.sizes import SMALL
from benchmarks.gpu.stage import Case, Options, run


def compare(options: Options) -> dict[str, Any]:
    """Train twice, the second time killed and resumed, and compare the losses step by step."""
    alone, sharded = (options.work / "runs" / name for name in (small_run.NAME, "fsdp"))
    if not metrics(alone):
        small_run.train(options)
    words = words_of(options, SMALL, "fsdp", [*options.size.small, "--train.strategy=fsdp"])
    figures = kill_at_checkpoint(words, sharded)
    start = time.monotonic()
    fit([*words, "--resume"])
    resume_s = time.monotonic() - start
    pairs = list(zip(metrics(alone), metrics(sharded), strict=True))
    return {
        **figures,
        "resumed_run_s": resume_s,
        "steps": len(pairs),
        "largest_loss_difference": max(abs(one["loss"] - other["loss"]) for one, other in pairs),
        "largest_grad_norm_difference": max(abs(one["grad_norm"] - other["grad_norm"]) for one, other in pairs),
    }


def cases(options: Options) -> list[Case]:
    """List the one comparison."""
    return [("killed and resumed", lambda: compare(options))]


if __name__ == "__main__":
    run(cases)
