"""What experiments share: settings of their runs, a command line, and training and evaluating several at once."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.sweep.jobs import Job, is_finished, run_jobs
from lab.sweep.planning import PlannedRun, plan_command

Config = dict[str, Any]
START = (sys.executable, "-m", "lab.fit", "configs/cpu_short.yaml")
COMMON: Config = {  # the tests of an evaluation follow, so that training's own are few
    "train.precision": "bf16",
    "train.threads": 1,
    "probe.every_tokens": None,
    "probe.distance_tests": 0,
    "probe.distance_points": None,
    "probe.tests": 10,
    "probe.max_length": 192,
}
BRANCH_SEED = 100  # added to the seed of a base model: the order of the text that its branches share


def make_parser(description: str | None, jobs: int = 2) -> argparse.ArgumentParser:
    """Make the command line of an experiment."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--results", action="store_true")
    parser.add_argument("-o", dest="folder", type=Path)
    return parser


def read_options(parser: argparse.ArgumentParser, show: Callable[[Path | None], None]) -> argparse.Namespace:
    """Read the command line; with --results show them and exit, without records in a line."""
    options = parser.parse_args()
    if options.results:
        try:
            show(options.folder)
        except LabError as error:
            parser.error(str(error))
        parser.exit()
    os.environ["OMP_NUM_THREADS"] = "1"  # each run has one thread
    return options


def branch_settings(name: str, seed: int, base: PlannedRun, tokens: int) -> Config:
    """Return the settings of a run that starts from a base model, whose run folder it reads."""
    settings = {"run.name": name.replace(" ", "_"), "run.seed": BRANCH_SEED + seed}
    return {**settings, "start.path": str(base.path), "train.tokens": tokens}


def plan_run(folder: Path, settings: Config) -> PlannedRun:
    """Plan a run in a folder."""
    return plan_command(START, {**COMMON, "run.folder": str(folder), **settings}, {})


def train(runs: Sequence[PlannedRun], jobs: int) -> int:
    """Train the runs that are not finished, `jobs` at once, and return the exit status."""
    unfinished = []
    for run in runs:
        if not is_finished(run.experiment):
            # The log of a run is opened before its process makes the folder.
            run.path.mkdir(parents=True, exist_ok=True)
            unfinished.append(Job(run.path.name, run.words(jobs), run.path / "fit.log"))
    return run_jobs(unfinished, jobs)


def run_each(module: str, runs: Sequence[PlannedRun], jobs: int, options: Callable[[PlannedRun], list[str]]) -> int:
    """Run a module on each run, `jobs` at once, and return the exit status; its output goes to the run folder."""
    log = f"{module.rpartition('.')[2]}.log"
    start = [sys.executable, "-m", module]
    return run_jobs([Job(run.path.name, [*start, str(run.path), *options(run)], run.path / log) for run in runs], jobs)
