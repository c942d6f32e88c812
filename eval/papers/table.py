"""A table or figure of a paper as a YAML file, eval/papers/PAPER/TABLE.yaml, and what it needs (needs.yaml)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from lab.config.settings import Settings
from lab.core.errors import ConfigError, look_up, suggest
from lab.core.schema import PathText, Section, validated
from lab.core.yaml import read_yaml

HOME = Path(__file__).parent
PLACEHOLDER = re.compile(r"\{([a-z][\w.-]*)\}")
Number = float | str | None  # a published number, or words such as OOM


class Column(Section):
    """Where a column of ours is read from: the mean of a field over all results that agree with `where`."""

    file: str
    """File of results, .jsonl or .json: a pattern in the row's own folder, or a path that begins with {model}."""
    field: str
    """Field of a result that holds the number."""
    where: Settings = dataclasses.field(default_factory=dict)
    """Values that fields of a result must have; * and ? stand for any characters, a list for any of its values."""
    times: float = 1.0
    """Factor on the number, such as 100 for percent."""
    pick: Literal["mean", "first", "last"] = "mean"
    """What is taken of several results."""


class Setup(Section):
    """What is trained, evaluated and read."""

    values: Settings = field(default_factory=dict)
    """Placeholders of the commands and columns, {NAME}, and their values."""
    rows: dict[str, Settings] = field(default_factory=dict)
    """Rows and their own placeholders: `model`, or `run`, the settings of the sweep's runs that belong to the row."""
    sweep: tuple[PathText, ...] = ()
    """Sweeps in wandb's format that train what the rows name by `run`."""
    needs: tuple[str, ...] = ()
    """Data and models of needs.yaml that the sweeps need; those that are placeholders are found."""
    evaluate: tuple[str, ...] = ()
    """Commands for each row, MODULE and its words; {out} is the row's folder for results."""
    columns: dict[str, Column] = field(default_factory=dict)
    """Columns, and where they are read from."""


class Mini(Setup):
    """The same quantities in miniature. Each setting and value that is given replaces that of the table."""

    note: str
    """What differs from the paper, besides the scale."""


class PaperTable(Setup):
    """A table or figure."""

    title: str
    """What it compares."""
    source: str
    """The paper's arXiv id and the number of the table or figure."""
    published: dict[str, dict[str, Number]]
    """The paper's numbers by row and column."""
    mini: Mini
    """The miniature."""

    @property
    def requirements(self) -> dict[str, Need]:
        """Models, data and shared runs, ordered so that each comes after what it needs."""
        texts = [*self.evaluate]
        for row in self.rows.values():
            texts += map(str, row.values())
        named = {*self.needs}
        # The list grows while it is read, as a value may have placeholders of its own.
        for text in texts:
            for name in PLACEHOLDER.findall(text):
                if name in self.values:
                    texts.append(str(self.values[name]))
                if name in needs():
                    named.add(name)
        return closure(sorted(named))

    @property
    def missing_files(self) -> list[str]:
        """A line for each file that this machine lacks, with its source."""
        lines = []
        for name, need in self.requirements.items():
            if need.train is None and need.path is not None and not Path(need.path).exists():
                lines.append(f"{name}: {need.path} is missing; get {need.source}")
        return lines


class Need(Section):
    """A model, a data set, or a run that several tables share."""

    path: PathText | None = None
    """Where commands look for it; default: it is read from the hub."""
    source: str = ""
    """Where it comes from: its name on the hub, or an address."""
    train: str | None = None
    """Command of lab.fit that trains it, and resumes it if it is unfinished; or of lab.longrecipe."""
    needs: tuple[str, ...] = ()
    """What that command needs."""


@cache
def needs() -> dict[str, Need]:
    """Read needs.yaml, whose sections are for its readers alone."""
    out: dict[str, Need] = {}
    for section in read_yaml(HOME / "needs.yaml").values():
        for name, values in section.items():
            out[name] = validated(Need, values)
    return out


def closure(names: Iterable[str]) -> dict[str, Need]:
    """Add what the named ones need in turn, before those that need it."""
    out: dict[str, Need] = {}
    for name in names:
        need = look_up(needs(), name, "needs")
        out |= closure(need.needs)
        out[name] = need
    return out


def names() -> list[str]:
    """List the tables, PAPER/TABLE, in the order of the papers."""
    out = []
    for paper in ("string", "dca", "longrecipe", "entropy_abf", "anchor"):
        for path in sorted((HOME / paper).glob("*.yaml")):
            out.append(f"{paper}/{path.stem}")
    return out


def read_paper_table(name: str, *, mini: bool = False) -> PaperTable:
    """Read a table's file; in miniature, the miniature replaces the table's own settings."""
    if name not in names():
        raise ConfigError(f"TABLE={name}: no such table with a command; {suggest(name, names())}")
    table = validated(PaperTable, read_yaml(HOME / f"{name}.yaml"))
    if not mini:
        return table
    # Models and data are those of the miniature alone; values, commands and columns are the table's where it has none.
    small = table.mini
    return replace(
        table,
        values={**table.values, **small.values},
        rows=small.rows,
        sweep=small.sweep,
        needs=small.needs,
        evaluate=small.evaluate or table.evaluate,
        columns=small.columns or table.columns,
    )


def expand_placeholders(text: str, values: Settings) -> str:
    """Replace the placeholders of a text by values, and by the paths of what needs.yaml lists.

    Raises: ConfigError for one without a value.
    Example:
        >>> expand_placeholders("eval.probe {model} --tests={tests}", {"model": "runs/{kind}", "kind": "a", "tests": 5})
        'eval.probe runs/a --tests=5'
    """
    paths: Settings = {name: need.path for name, need in needs().items()}
    paths |= values
    # A value may have a placeholder, whose value may have another.
    for _ in range(3):
        for name in PLACEHOLDER.findall(text):
            if name not in paths:
                raise ConfigError(f"{{{name}}}: has no value in {text}; {suggest(name, [*values])}")
        text = PLACEHOLDER.sub(lambda match: str(paths[match[1]]), text)
    return text
