"""Train planned runs and evaluate them, several at once."""

import sys
from collections.abc import Callable, Sequence

from lab.jobs import Job, is_finished, run_jobs
from lab.sweep.planning import PlannedRun


def train(runs: Sequence[PlannedRun], jobs: int) -> int:
    """Train the runs that are not finished, `jobs` at once, and return the exit status."""
    unfinished = [run for run in runs if not is_finished(run.experiment)]
    for run in unfinished:
        run.path.mkdir(parents=True, exist_ok=True)
    return run_jobs([Job(run.path.name, run.words(jobs), run.path / "fit.log") for run in unfinished], jobs)


def run_each(module: str, runs: Sequence[PlannedRun], jobs: int, options: Callable[[PlannedRun], list[str]]) -> int:
    """Run a module on each run, `jobs` at once, and return the exit status; its output goes to the run folder."""
    log = f"{module.rpartition('.')[2]}.log"
    start = [sys.executable, "-m", module]
    return run_jobs([Job(run.path.name, [*start, str(run.path), *options(run)], run.path / log) for run in runs], jobs)
