"""Train the runs of a sweep on this machine, without a server; those that are finished are skipped.

    probe-lab sweep FILE [--jobs=2] [--seeds=5] [--dry_run] [--section.key=value ...]

FILE is a YAML file of sweeps/ in wandb's format, of method grid; `wandb sweep FILE` runs the same:

    probe-lab sweep sweeps/windows_mini.yaml --dry_run
    probe-lab sweep sweeps/windows_mini.yaml --jobs=2
    probe-lab sweep sweeps/windows_mini.yaml --seeds=5
    probe-lab sweep sweeps/windows_mini.yaml --index=3

Settings (--train.tokens=100000) go to every run. What a run prints is appended to sweep.log in its folder. A failure
does not stop the others. A run that another process trains is left to it. The same command continues after Ctrl-C or a
crash. docs/sweeps.md

The exit status is 1 where a run failed and the others are done.
"""

import os
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.core.arguments import split_options
from lab.core.command import CONTINUES, EXIT_FAILURE, EXIT_STOPPED, Arguments, CommandSpec, run, show, start
from lab.core.errors import ConfigError
from lab.core.launch import COPIES, check_copies
from lab.core.locks import LOCK_NAME, is_held
from lab.core.schema import NonNegative, Positive, Section
from lab.sweep.jobs import Job, is_finished, run_jobs
from lab.sweep.planning import PlannedRun, plan

LOG = "sweep.log"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Section):
    """The options of a sweep."""

    jobs: Positive = 1
    """Runs at once, each on its part of the cores unless train.threads is set."""
    seeds: Positive | None = None
    """Seeds, from 0, in place of the file's values of run.seed."""
    index: NonNegative | None = None
    """Number of the only run to train, from 0 in the order of --dry_run."""


@dataclass
class Progress:
    """How far a run is: waiting, running, finished, failed, stopped, or elsewhere in another process."""

    run: PlannedRun
    name: str = "waiting"
    reason: str = ""

    def change(self, name: str, reason: str = "") -> None:
        """Enter a state and print it."""
        self.name = name
        self.reason = reason
        show(self.line(), error=True)

    def line(self) -> str:
        """Describe the run."""
        settings = " ".join(f"{key}={value}" for key, value in self.run.swept.items())
        return f"{self.run.path.name}  {settings}  {self.name}  {self.reason}".rstrip()


def train(runs: Sequence[PlannedRun], jobs: int) -> int:
    """Train all unfinished runs, list what became of each, and return the exit status."""
    states = {str(run.path): Progress(run) for run in runs}

    # Asked as late as possible: another sweep may train the run by then.
    def is_done(job: Job) -> bool:
        state = states[job.name]
        if is_finished(state.run.experiment):
            state.change("finished")
        elif is_held(state.run.path / LOCK_NAME):
            state.change("elsewhere")
        else:
            state.change("running")
            state.run.path.mkdir(parents=True, exist_ok=True)
        return state.name != "running"

    def on_end(job: Job, status: int) -> None:
        state = states[job.name]
        # If two sweeps start a run at the same moment, one of its processes fails, perhaps after the other has ended.
        if status == 0 or is_finished(state.run.experiment):
            state.change("finished")
        elif status == EXIT_STOPPED:
            state.change("stopped")
        elif is_held(state.run.path / LOCK_NAME):
            state.change("elsewhere")
        else:
            state.change("failed", f"status {status}: {job.last_line}")
        left = sum(progress.name in ("waiting", "running") for progress in states.values())
        show(f"{len(states) - left} of {len(states)} runs have ended", error=True)

    all_jobs = [Job(str(run.path), run.words(jobs), run.path / LOG) for run in runs]
    status = run_jobs(all_jobs, jobs, is_done=is_done, on_end=on_end, goes_on=True)
    show(table(states.values()))
    names = {state.name for state in states.values()}
    # A run may be finished although its process failed: the states count. Stopped comes before failed, because the same
    # command has something left to do.
    if status == EXIT_STOPPED or names & {"elsewhere", "stopped"}:
        return EXIT_STOPPED
    return EXIT_FAILURE if "failed" in names else 0


def table(states: Collection[Progress]) -> str:
    """List the runs, and count them by state."""
    lines = [state.line() for state in states]
    counts = Counter(state.name for state in states)
    counted = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    return "\n".join([*lines, f"{len(states)} runs: {counted}"])


def work(args: Arguments) -> int:
    """Read the command line, and run the sweep or print what was requested."""
    options, of_runs = split_options(SweepOptions, args.settings)
    runs = plan(Path(args.positional[0]), of_runs, seeds=options.seeds)
    if options.index is not None:
        if options.index >= len(runs):
            raise ConfigError(f"--index={options.index}: must be < {len(runs)}, the number of runs; lower it")
        runs = [runs[options.index]]
    if args.options.dry_run:
        states = [Progress(run, "finished" if is_finished(run.experiment) else "waiting") for run in runs]
        show(f"{table(states)}\n")
        for run in runs:
            show(shlex.join(run.words(options.jobs)))
        return 0
    if options.index is None:
        check_copies(os.environ, "start one, or give each its own --index")
    # They count the processes of this command, for which lab.fit would take its own.
    for name in COPIES:
        os.environ.pop(name, None)
    return train(runs, options.jobs)


SPEC = CommandSpec(
    description=__doc__,
    flags={"--dry_run": "List the runs and their commands, and train nothing."},
    missing="FILE: must be the first argument, a sweep; for instance sweeps/windows_mini.yaml",
    options=SweepOptions,
    stopped=CONTINUES,
)
main = partial(run, SPEC, work)


if __name__ == "__main__":
    start(main)
