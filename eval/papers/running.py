"""The commands of a table at one size, and what runs those that are missing.

Placeholders are replaced by values, and a row's runs are found among those of its sweeps. Shared runs, sweeps and each
row's commands are child processes, one after another.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.engine.command import printing_to_stderr
from eval.papers.table import Need, Table, needs
from lab import jobs
from lab.command import STOPPED, show
from lab.errors import ConfigError, DataError, LabError, nearest
from lab.files import write_json
from lab.sweep.planning import PlannedRun, plan, planned_run
from lab.train.arms import flatten

FINISHED = "finished.json"  # in a row's folder once its commands have run
PLACEHOLDER = re.compile(r"\{([a-z][\w.-]*)\}")
DEEPEST = 3  # values that name values


@dataclass(frozen=True)
class Job:
    """One row on one model: its values, and the commands, each as words."""

    row: str
    values: Mapping[str, Any]
    out: Path
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Sized:
    """A table at one of its two sizes."""

    name: str
    table: Table
    mini: bool

    @property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows of this size."""
        return self.table.mini.rows if self.mini else self.table.rows

    @property
    def values(self) -> dict[str, Any]:
        """The table's values at this size."""
        return {**self.table.values, **(self.table.mini.values if self.mini else {})}

    @property
    def needed(self) -> dict[str, Need]:
        """Models, data and shared runs, those that others need first."""
        texts = [*self.table.evaluate, *map(str, self.values.values())]
        texts += [str(value) for row in self.rows.values() for value in row.values()]
        named = {name for text in texts for name in PLACEHOLDER.findall(text)} & {*needs().known}
        return needs().closure(iter(sorted({*named, *(() if self.mini else self.table.needs)})))

    @property
    def sweeps(self) -> tuple[str, ...]:
        """The sweep files of this size."""
        return self.table.mini.sweep if self.mini else self.table.sweep

    def runs(self) -> list[PlannedRun]:
        """Plan the runs of the sweeps.

        Raises: ConfigError, for a missing model that they start from, too.
        """
        return [run for file in self.sweeps for run in plan(Path(file), {})]

    def jobs(self, folder: Path, runs: Sequence[PlannedRun]) -> Iterator[Job]:
        """List every row's commands.

        Raises: ConfigError for a placeholder without a value, or a row that no run of the sweeps is of.
        """
        for row, own in self.rows.items():
            for model in self.models(row, own, runs):
                values = {**self.values, **own, **model}
                plain = [expand(command, {**values, "out": "{out}"}) for command in self.table.evaluate]
                digest = hashlib.sha256("\n".join(plain).encode()).hexdigest()[:8]
                out = folder / f"{re.sub('[^a-z0-9]+', '-', row.lower()).strip('-')}-{digest}"
                filled = [command.replace("{out}", str(out)) for command in plain]
                yield Job(row, {**values, "out": out}, out, tuple(tuple(shlex.split(one)) for one in filled))

    def models(self, row: str, own: Mapping[str, Any], runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
        """Find the runs that belong to a row, as values of `model`; one without a value for rows that name theirs.

        Raises: ConfigError.
        """
        if "run" not in own:
            return [{}]
        wanted = {key: str(value) for key, value in flatten(own["run"]).items()}
        found = [run for run in runs if wanted.items() <= settings_of(run).items()]
        if not found:
            raise ConfigError(f"{self.name}: rows.{row}.run={own['run']}: no run of {', '.join(self.sweeps)} is so")
        return [{"model": str(run.path)} for run in found]


def settings_of(run: PlannedRun) -> dict[str, str]:
    """Write a run's settings by dotted name."""
    return {key: str(value) for key, value in flatten(run.experiment.to_dict()).items()}


def expand(text: str, values: Mapping[str, Any]) -> str:
    """Replace the placeholders of a text by values, and by the paths of what needs.yaml lists.

    Raises: ConfigError for one without a value.
    Example:
        >>> expand("eval.probe {model} --tests={tests}", {"model": "runs/{kind}", "kind": "a", "tests": 5})
        'eval.probe runs/a --tests=5'
    """
    known = {name: str(need.path) for name, need in needs().known.items()} | {k: str(v) for k, v in values.items()}

    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise ConfigError(f"{found[0]}: has no value in {text}; {nearest(found[1], [*values])}")
        return known[found[1]]

    for _ in range(DEEPEST):
        text = PLACEHOLDER.sub(lambda found: found[0] if found[0] == known.get(found[1]) else value(found), text)
    return text


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
            if need.train and not is_trained(need):
                call(shlex.split(need.train))
        runs = sized.runs()
        for file in sized.sweeps if not all(jobs.is_finished(run.experiment) for run in runs) else ():
            call(["lab.sweep", file])
        found = list(sized.jobs(folder, runs))
        for job in found:
            if job.commands and not (job.out / FINISHED).exists():
                job.out.mkdir(parents=True, exist_ok=True)
                for words in job.commands:
                    show(f"{job.row}: {shlex.join(words)}")
                    call(words)
                write_json(job.out / FINISHED, [shlex.join(words) for words in job.commands])
    return found


def is_trained(need: Need) -> bool:
    """Return whether the run that a lab.fit command makes is finished.

    Raises: ConfigError.
    """
    words = shlex.split(need.train or "")
    return words[0] == "lab.fit" and jobs.is_finished(planned_run(words, {}, {}).experiment)


def call(words: Sequence[str]) -> None:
    """Run a command as a child process.

    Raises: LabError where it fails, once it has printed why; KeyboardInterrupt.
    """
    status = jobs.run_jobs([jobs.Job(shlex.join(words), [sys.executable, "-m", *words])])
    if status == STOPPED:
        raise KeyboardInterrupt
    if status:
        raise LabError(f"{shlex.join(words)}: ended with status {status}")


def dry_run(sized: Sized, folder: Path) -> Iterator[str]:
    """List what would be run, without looking whether it has been, and what is missing."""
    yield from missing(sized)
    yield from (f"python -m {need.train}" for need in sized.needed.values() if need.train)
    yield from (f"python -m lab.sweep {file}" for file in sized.sweeps)
    try:
        yield from (
            f"python -m {shlex.join(words)}" for job in sized.jobs(folder, sized.runs()) for words in job.commands
        )
    except LabError as error:
        yield str(error)
