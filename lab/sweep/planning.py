"""The runs of a sweep: their commands, settings and names, all checked before the first of them starts.

wandb's agents replace ${env}, ${interpreter}, ${program} and ${args} in a sweep's command, and so does `expand`;
${interpreter} is this Python instead of `python`.

Source: wandb 0.31, wandb_agent.py and sdk/launch/sweeps/utils.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lab.command import Syntax
from lab.config import Experiment, load_experiment
from lab.config.experiment import AUTO
from lab.errors import ConfigError, LabError
from lab.schema import parse_yaml
from lab.sweep.reading import Settings, Sweep
from lab.train.arms import changes, flatten
from lab.train.checkpoints import newest
from lab.train.folder import RunFolder, is_finished

PLAIN = re.compile(r"[A-Za-z./][\w./-]*")  # text that may need no quotes
FIT = (("-m", "lab.fit"), ("probe-lab", "fit"))
FORM = '["${env}", "${interpreter}", -m, lab.fit, CONFIG, --resume, --run.name=auto, "${args}"]'
SYNTAX = Syntax(flags=("--resume",), missing=f"command: names no CONFIG after lab.fit; write {FORM}")
FOR_WANDB = "track.wandb"  # a setting that a sweep's command has for wandb's agents


class FitCommand(NamedTuple):
    """A command of lab.fit: the words that start it, its config and its settings."""

    start: list[str]
    config: Path
    settings: Settings


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
        """Write the command that starts or resumes the run; a run whose config sets threads keeps those."""
        asked = {"train.threads": threads} if threads and self.experiment.train.threads is None else {}
        settings = {**self.command.settings, **asked}
        return [*self.command.start, str(self.command.config), "--resume", *map(setting, settings.items())]

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
    runs: dict[Path, Run] = {}
    faults: dict[str, None] = {}
    for index, swept in enumerate(sweep.settings):
        both = flatten(swept).keys() & flatten(dict(given)).keys()
        faults |= {f"--{key}={given.get(key)}: is a parameter of the sweep; leave it out": None for key in sorted(both)}
        try:
            run = run_of(index, read_command(expand(sweep.command, sweep.program, swept)), given, swept)
        except ConfigError as error:
            faults |= dict.fromkeys(error.faults)
            continue
        before = runs.setdefault(run.path, run)
        if before is not run:
            rule = f"is that of two runs, {before.index} and {index}, which compute the same"
            faults[f"run.name={run.path.name}: {rule}; sweep over other settings, or set run.name"] = None
    if faults:
        raise ConfigError(*faults)
    return list(runs.values())


def run_of(index: int, command: FitCommand, given: Mapping[str, Any], swept: Mapping[str, Any]) -> Run:
    """Read the experiment of one run, whose name is automatic unless the command has another.

    Raises: ConfigError.
    """
    command = command._replace(settings={"run.name": AUTO, **command.settings, **given})
    return Run(index, load_experiment(command.config, command.settings), command, flatten(dict(swept)))


def expand(command: Sequence[Any], program: str | None, settings: Settings) -> list[str]:
    """Replace the macros of a command.

    Raises: ConfigError for an unknown macro.
    """
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": [sys.executable],
        "${program}": [program or ""],
        "${args}": [f"--{key}={value}" for key, value in settings.items()],
    }
    unknown = [str(word) for word in command if str(word).startswith("${") and str(word) not in macros]
    if unknown:
        raise ConfigError(f"command={unknown[0]}: unknown; use one of {', '.join(macros)}")
    return [word for item in command for word in macros.get(str(item), [str(item)])]


def read_command(words: Sequence[str]) -> FitCommand:
    """Find the config and settings that a command passes to lab.fit, without those for wandb's agents.

    Raises: ConfigError where it does not start lab.fit.
    """
    at = [n for n, (one, two) in enumerate(pairwise(words), start=2) if (Path(one).name, two) in FIT]
    if not at:
        raise ConfigError(f"command={' '.join(words)}: must start lab.fit, whose settings name the runs; write {FORM}")
    read = SYNTAX.read(words[at[0] :])
    settings = {key: value for key, value in read.settings.items() if key != FOR_WANDB}
    return FitCommand(list(words[: at[0]]), Path(read.places[0]), settings)


def setting(item: tuple[str, Any]) -> str:
    """Write a setting as a word that reads back to the same value.

    Example:
        >>> setting(("run.name", "auto")), setting(("run.name", "7")), setting(("mask", {"chunks": None}))
        ('--run.name=auto', '--run.name="7"', '--mask={"chunks": null}')
    """
    key, value = item
    is_plain = isinstance(value, str) and PLAIN.fullmatch(value) is not None and parse_yaml(value, key) == value
    return f"--{key}={value if is_plain else json.dumps(value)}"
