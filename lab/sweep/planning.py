"""The runs of a sweep: their settings, names and commands, all checked before the first of them starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import Experiment, load_experiment
from lab.config.naming import AUTO
from lab.errors import ConfigError, LabError
from lab.sweep.commands import FitCommand, expand, read_command, write_command
from lab.sweep.reading import Sweep
from lab.train.changes import changes, flatten
from lab.train.checkpoints import newest
from lab.train.folder import RunFolder, is_finished


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    index: int
    experiment: Experiment
    command: FitCommand
    swept: Mapping[str, Any]
    """The sweep's parameters in this run."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.experiment.run.path

    def threads(self, jobs: int) -> int:
        """Choose CPU threads: those of the config, those the run began with, or its part of the cores."""
        begun = None
        with suppress(LabError):  # lab.fit refuses what cannot be read
            begun = RunFolder(self.path).threads()
        return self.experiment.train.threads or begun or max(1, cores() // jobs // self.experiment.train.devices)

    def words(self, threads: int | None = None) -> list[str]:
        """Write the command; a run whose config sets threads keeps those."""
        asked = {"train.threads": threads} if threads and self.experiment.train.threads is None else {}
        return write_command(self.command._replace(settings={**self.command.settings, **asked}))

    def is_finished(self) -> bool:
        """Return whether the run has ended, as lab.fit would find; lab.fit refuses what cannot be read."""
        config, folder = self.path / "config.yaml", RunFolder(self.path)
        try:
            if not config.exists() or any(changes(load_experiment(config).to_dict(), self.experiment.to_dict())):
                return False
            return is_finished(folder, newest(folder.checkpoints)[0], self.experiment.train.steps)
        except LabError:
            return False


def cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan(sweep: Sweep, given: Mapping[str, Any]) -> list[Run]:
    """List the runs of a sweep in order; `given` settings replace those of the file's command.

    Raises: ConfigError with a line for each fault of any run.
    """
    runs: list[Run] = []
    faults: dict[str, None] = {}
    for index, swept in enumerate(sweep.settings):
        both = flatten(swept).keys() & flatten(dict(given)).keys()
        faults |= {f"--{key}={given.get(key)}: is a parameter of the sweep; leave it out": None for key in sorted(both)}
        try:
            runs.append(run_of(index, read_command(expand(sweep.command, sweep.program, swept)), given, swept))
        except ConfigError as error:
            faults |= dict.fromkeys(error.faults)
    faults |= dict.fromkeys(same_names(runs))
    if faults:
        raise ConfigError(*faults)
    return runs


def run_of(index: int, command: FitCommand, given: Mapping[str, Any], swept: Mapping[str, Any]) -> Run:
    """Read the experiment of one run, whose name is automatic unless the command has another.

    Raises: ConfigError.
    """
    command = command._replace(settings={"run.name": AUTO, **command.settings, **given})
    return Run(index, load_experiment(command.config, command.settings), command, flatten(dict(swept)))


def same_names(runs: Sequence[Run]) -> list[str]:
    """List the runs that would share a folder."""
    first: dict[Path, Run] = {}
    faults = []
    for run in runs:
        before = first.setdefault(run.path, run)
        if before is not run:
            faults.append(
                f"run.name={run.path.name}: is that of two runs, {before.index} and {run.index}, which compute the "
                "same; sweep over other settings, or set run.name"
            )
    return faults
