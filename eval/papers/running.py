"""Runs what is missing of a table: shared runs and sweeps by lab.sweep, then each row's commands in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from shlex import join, split

from eval.engine.command import printing_to_stderr
from eval.papers.expanding import Job, Sized, training
from lab.command import STOPPED, show
from lab.data.preparation import is_prepared
from lab.errors import CheckpointError, DataError, LabError
from lab.files import write_json
from lab.sweep import schedule
from lab.sweep.planning import Run

FINISHED = "finished.json"  # in a row's folder once its commands have run
GENERATED = ("synthetic", "stdlib")  # corpora that need no download


def missing(sized: Sized) -> list[str]:
    """List what this machine lacks, a line for each, with where it comes from."""
    return [
        f"{name}: {need.path} is missing; get {need.source}"
        for name, need in sized.needed.items()
        if need.train is None and need.path is not None and not Path(need.path).exists()
    ]


def run_table(sized: Sized, folder: Path) -> list[Job]:
    """Run what is not finished, and return every row's job.

    Raises: LabError for what is missing or fails; KeyboardInterrupt.
    """
    lacks = missing(sized)
    if lacks:
        raise DataError("\n".join(lacks))
    with printing_to_stderr():
        for need in sized.needed.values():
            run = training(need)
            train([run] if run else [])
            if need.train and run is None:
                call(split(need.train))
        runs = sized.runs()
        train(runs)
        jobs = list(sized.jobs(folder, runs))
        for job in jobs:
            run_job(job)
    return jobs


def train(runs: Sequence[Run]) -> None:
    """Train the unfinished runs.

    Raises: DataError where shards must be prepared first; CheckpointError where a run fails; KeyboardInterrupt.
    """
    unprepared = [run for run in runs if not run.is_finished() and not can_prepare(run)]
    if unprepared:
        raise DataError(
            "\n".join(f"{one.command.config}: prepare its corpus first: {command(one)}" for one in unprepared)
        )
    states = schedule.train(runs, jobs=1)
    if schedule.exit_status(states) == STOPPED:
        raise KeyboardInterrupt
    for state in states:
        if state.name != "finished":
            raise CheckpointError(f"{state.run.path}: its training has failed ({state.reason}); see sweep.log there")


def can_prepare(run: Run) -> bool:
    """Return whether a run's shards exist or follow from its config alone."""
    return run.experiment.data.corpus.name in GENERATED or is_prepared(run.experiment.data)


def command(run: Run) -> str:
    """Write the command that prepares a run's shards."""
    return f"python -m lab.prepare {run.command.config}"


def run_job(job: Job) -> None:
    """Run one row's commands unless they have run before.

    Raises: LabError; KeyboardInterrupt.
    """
    if (job.out / FINISHED).exists() or not job.commands:
        return
    job.out.mkdir(parents=True, exist_ok=True)
    for words in job.commands:
        show(f"{job.row}: {join(words)}")
        call(words)
    write_json(job.out / FINISHED, [join(words) for words in job.commands])


def call(words: Sequence[str]) -> None:
    """Run a command in this process.

    Raises: LabError where it fails, once it has printed why; KeyboardInterrupt.
    """
    status = main_of(words[0])(list(words[1:]))
    if status == STOPPED:
        raise KeyboardInterrupt
    if status:
        raise LabError(f"{join(words)}: ended with status {status}")


def main_of(module: str) -> Callable[[Sequence[str]], int]:
    """Import a command's main function."""
    loaded = import_module(module)
    main: Callable[[Sequence[str]], int]
    main = (import_module(f"{module}.__main__") if hasattr(loaded, "__path__") else loaded).main
    return main


def dry_run(sized: Sized, folder: Path) -> Iterator[str]:
    """List what would be run, without looking whether it has been, and what is missing."""
    yield from missing(sized)
    yield from (f"python -m {need.train}" for need in sized.needed.values() if need.train)
    yield from (f"python -m lab.sweep {file}" for file in sized.sweeps)
    try:
        yield from (f"python -m {join(words)}" for job in sized.jobs(folder, sized.runs()) for words in job.commands)
    except LabError as error:
        yield str(error)
