"""Read a sweep file in wandb's format and plan its runs, all checked before the first of them starts.

A grid is the product of the values. The parameters are in the order of their names, and the last one varies fastest.

A sweep's command must start lab.fit, which runs in this Python; ${program} and ${args} in it are replaced as wandb's
agents replace them.

Source: the package sweeps 0.3.0, grid_search.py and params.py; wandb 0.31, wandb_agent.py.
"""

import copy
import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lab.config import Experiment, load_experiment
from lab.config.experiment import AUTO
from lab.config.settings import Settings
from lab.core.command import CommandSpec
from lab.core.errors import ConfigError, LabError, abbreviate
from lab.core.launch import cores
from lab.core.plugins import load_plugins
from lab.core.schema import Positive, Section, validated
from lab.core.yaml import flatten, parse_yaml, part, read_yaml
from lab.runs.folder import RunFolder

FORM = '["${env}", "${interpreter}", -m, lab.fit, CONFIG, --resume, --run.name=auto, "${args}"]'
MOST_RUNS = 10_000  # each is read and checked before the first starts


class SweepFile(Section):
    """A sweep in wandb's format; `metric`, `name`, `description`, `project` and `entity` are wandb's own."""

    method: Literal["grid"]
    """Every combination; other methods draw values, which wandb's agents do: wandb sweep FILE."""
    parameters: dict[str, tuple[Any, ...]]
    """Values by the dotted name of a setting."""
    command: tuple[Any, ...]
    """Arguments of the command that starts a run; ${args} is replaced by the settings."""
    program: str = ""
    """Replacement of ${program}."""
    run_cap: Positive | None = None
    """Maximum number of runs."""
    metric: Any = None
    name: Any = None
    description: Any = None
    project: Any = None
    entity: Any = None

    def rules(self) -> list[str]:
        """Reject a sweep over nothing, and too many runs."""
        if not self.parameters:
            return ["parameters={}: must hold settings by dotted name; for instance run.seed"]
        size = math.prod(map(len, self.parameters.values()))
        if min(size, self.run_cap or size) > MOST_RUNS:
            return [f"parameters: make more than {MOST_RUNS:,} runs; give fewer values, or lower run_cap"]
        return []

    def settings(self) -> Iterator[Settings]:
        """List the settings of every run."""
        # wandb's agents take the parameters in this order, too, so that run n is the same here and there.
        parameters = dict(sorted(self.parameters.items()))
        for row in itertools.islice(itertools.product(*parameters.values()), self.run_cap):
            yield dict(zip(parameters, row, strict=True))


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its config and settings, and the sweep's parameters in it."""

    config: Path
    settings: Settings
    swept: Settings
    experiment: Experiment

    @property
    def path(self) -> Path:
        return self.experiment.run.path

    def threads(self, jobs: int) -> int:
        """Choose CPU threads: those of the config, those the run began with, or its part of the cores."""
        recorded = None
        with suppress(LabError):  # lab.fit rejects what cannot be read
            recorded = RunFolder(self.path).threads()
        return self.experiment.train.threads or recorded or max(1, cores() // jobs // self.experiment.train.devices)

    def command(self, jobs: int) -> list[str]:
        """Write the command that starts or resumes the run, one of so many at once."""
        options = []
        for key, value in {**self.settings, "train.threads": self.threads(jobs)}.items():
            is_plain = isinstance(value, str) and parse_yaml(value, key) == value
            options.append(f"--{key}={value if is_plain else json.dumps(value)}")
        return [sys.executable, "-m", "lab.fit", str(self.config), "--resume", *options]


def plan_sweep(path: Path, settings: Settings, *, seeds: int | None = None) -> list[PlannedRun]:
    """List the runs of a sweep file in order; `settings` replace those of the file's command.

    `seeds` is the number of seeds, from 0, in place of the file's.

    Raises: ConfigError with a line for each message of any run.
    """
    file = read_sweep(path, seeds)
    for key in flatten(dict(settings)).keys() & flatten(dict(file.parameters)).keys():
        raise ConfigError(f"--{key}={settings[key]}: is a parameter of the sweep; leave it out")
    runs: dict[Path, PlannedRun] = {}
    errors: dict[str, str] = {}
    for swept in file.settings():
        try:
            run = plan_command(file.command, {**swept, **settings}, swept, file.program)
        except ConfigError as error:
            # Many runs have the same message with other values: the key has no value, so that one line is printed.
            for message in error.errors:
                errors.setdefault(re.sub("=.*?: ", ": ", message, count=1), message)
            continue
        if runs.setdefault(run.path, run) is not run:
            errors[run.path.name] = (
                f"run.name={run.path.name}: is that of two runs, which compute the same; sweep over other settings, or "
                "set run.name"
            )
    if errors:
        raise ConfigError(*errors.values())
    return list(runs.values())


def read_sweep(path: Path, seeds: int | None = None) -> SweepFile:
    """Read a sweep file, with the seeds from 0 in place of its own if their number is given.

    Raises: ConfigError.
    """
    values = read_yaml(path)
    for key in ("controller", "early_terminate", "imageuri", "job", "scheduler"):
        if key in values:
            raise ConfigError(
                f"{key}: needs wandb's server; remove it to train every run to its end, or run: wandb sweep {path}"
            )
    if isinstance(values.get("parameters"), dict):
        values["parameters"] = read_sweep_values(values["parameters"])
    if seeds is not None:
        # No more than are needed for the error of too many runs: a list of 10^9 numbers would fill the memory.
        part(values, "parameters")["run.seed"] = list(range(min(seeds, MOST_RUNS + 1)))
    return validated(SweepFile, values)


def read_sweep_values(parameters: Settings, prefix: str = "") -> dict[str, list[Any]]:
    """List the values of each parameter by the dotted name of its setting; those of nested sections, too.

    Example:
        >>> read_sweep_values({"optim": {"parameters": {"lr": {"value": 0.1}}}, "run.seed": {"values": [1, 2]}})
        {'optim.lr': [0.1], 'run.seed': [1, 2]}

    Raises: ConfigError for a parameter without values, or one that is nested and dotted.
    """
    found: dict[str, list[Any]] = {}
    for name, parameter in parameters.items():
        dotted = f"{prefix}{name}"
        match parameter:
            case {"parameters": dict(nested)} if len(parameter) == 1:
                added = read_sweep_values(nested, f"{dotted}.")
            case {"value": value} if len(parameter) == 1:
                added = {dotted: [value]}
            case {"values": [_, *_] as values} if len(parameter) == 1:
                added = {dotted: values}
            case _:
                raise ConfigError(
                    f"parameters.{dotted}={abbreviate(parameter)}: must have value or values; write its values, or let "
                    "wandb's agents sample them: wandb sweep FILE"
                )
        for repeated in sorted(found.keys() & added.keys()):
            raise ConfigError(f"parameters.{repeated}: is there twice, nested and dotted; remove one of them")
        found |= added
    return found


def plan_command(command: Sequence[Any], settings: Settings, swept: Settings, program: str = "") -> PlannedRun:
    """Plan the run of a command that starts lab.fit; its name is automatic unless the command has another."""
    # ${args} is where an agent puts the settings, which here follow the command.
    words = [program if word == "${program}" else str(word) for word in command if word != "${args}"]
    usual = {"${env}", "${interpreter}", "/usr/bin/env", "env", "python", "python3", "-m", sys.executable}
    if "lab.fit" not in words or not usual.issuperset(words[: words.index("lab.fit")]):
        raise ConfigError(
            f"command={abbreviate(shlex.join(words))}: must start lab.fit alone, by which runs are named; write {FORM}"
        )
    fit = CommandSpec(flags={"--resume": ""}, missing=f"command: names no CONFIG after lab.fit; write {FORM}")
    read = fit.read(words[words.index("lab.fit") + 1 :])
    read.settings.pop("track.wandb", None)  # which is for wandb's agents
    chosen = {"run.name": AUTO, **read.settings, **settings}
    config = Path(read.positional[0])
    if "plugins" in swept or "plugins" not in settings:  # else those of the sweep's own command line
        load_plugins(chosen.get("plugins"), "the sweep")
    # load_experiment completes sections in place
    return PlannedRun(config, chosen, flatten(dict(swept)), load_experiment(config, copy.deepcopy(chosen)))
