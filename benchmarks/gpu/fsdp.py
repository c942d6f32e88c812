"""The small model under FSDP on one rank, killed and resumed, against one process: equal losses, and times."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.fits import Fit
from benchmarks.gpu.sizes import SMALL
from benchmarks.gpu.small_run import single
from benchmarks.gpu.stage import Case, Options, run


def compare(options: Options) -> dict[str, Any]:
    """Train twice, the second time killed and resumed, and compare the losses step by step."""
    alone = single(options)
    if len(alone.metrics()) == 0:
        alone.run()
    sharded = Fit(options, SMALL, "fsdp", [*options.size.small, "--train.strategy=fsdp"])
    figures = sharded.kill_at_checkpoint()
    resumed_s = sharded.run("--resume")
    pairs = list(zip(alone.metrics(), sharded.metrics(), strict=True))
    return {
        **figures,
        "resumed_run_s": resumed_s,
        "steps": len(pairs),
        "largest_loss_difference": max(abs(one["loss"] - other["loss"]) for one, other in pairs),
        "largest_grad_norm_difference": max(abs(one["grad_norm"] - other["grad_norm"]) for one, other in pairs),
    }


def cases(options: Options) -> list[Case]:
    """List the one comparison."""
    return [("killed and resumed", lambda: compare(options))]


if __name__ == "__main__":
    run(cases)
