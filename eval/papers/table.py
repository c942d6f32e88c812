"""A table or figure of a paper as a YAML file, eval/papers/PAPER/TABLE.yaml, and what it needs (needs.yaml)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from lab.errors import ConfigError, look_up, nearest
from lab.schema import PathText, PositiveFloat, Section, read_yaml, validated

HOME = Path(__file__).parent
PAPERS = {  # folder: arXiv id and short title
    "string": ("2410.18745", "STRING"),
    "dca": ("2402.17463", "Dual Chunk Attention"),
    "longrecipe": ("2409.00509", "LongRecipe"),
    "entropy_abf": ("2401.07004", "Entropy-aware ABF"),
    "anchor": ("2411.13476", "AnchorAttention"),
}
Number = float | str | None  # a published number, or words such as OOM
Words = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column(Section):
    """Where a column of ours is read from: the mean of a field over all results that agree with `where`."""

    file: str
    """File of results, .jsonl or .json: a pattern in the row's own folder, or a path that begins with {model}."""
    field: str
    """Field of a result that holds the number."""
    where: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Values that fields of a result must have; * and ? stand for any characters, a list for any of its values."""
    under: str | None = None
    """Field of a .json file that holds the list of results; left out, the file is one result."""
    times: float = 1.0
    """Factor on the number, such as 100 for percent."""
    pick: Literal["mean", "last", "sum"] = "mean"
    """What is taken of several results."""


@dataclass(frozen=True, kw_only=True)
class Mini(Section):
    """The same quantities in miniature: what replaces the table's own settings."""

    note: str
    """What differs from the paper, besides the scale."""
    values: Words = field(default_factory=dict)
    """Placeholders and their values, in place of the table's."""
    rows: dict[str, Words]
    """Rows, in place of the table's."""
    sweep: tuple[PathText, ...] = ()
    """Sweeps whose runs the rows name."""
    seconds: PositiveFloat | None = None
    """Seconds that it took on one CPU core, without the training of shared models; left out, it has not been run."""


@dataclass(frozen=True, kw_only=True)
class Table(Section):
    """A table or figure."""

    title: str
    """What it compares."""
    source: str
    """The paper's arXiv id and the number of the table or figure."""
    sweep: tuple[PathText, ...] = ()
    """Sweeps in wandb's format that train what the rows name by `run`."""
    values: Words = field(default_factory=dict)
    """Placeholders of the commands and columns, {NAME}, and their values."""
    rows: dict[str, Words] = field(default_factory=dict)
    """Rows and their own placeholders: `model`, or `run`, the settings of the sweep's runs that belong to the row."""
    evaluate: tuple[str, ...] = ()
    """Commands for each row, MODULE and its words; {out} is the row's folder for results."""
    columns: dict[str, Column]
    """Columns, and where they are read from."""
    published: dict[str, dict[str, Number]]
    """The paper's numbers by row and column."""
    mini: Mini
    """The miniature."""
    needs: tuple[str, ...] = ()
    """Data and models of needs.yaml that the sweeps need; those that are placeholders are found."""
    gpus: str = "1 x A100 80 GB"
    """GPUs that the full size needs."""
    hours: str = "-, -"
    """GPU-hours of training and of evaluation at full size."""

    def rules(self) -> list[str]:
        """Refuse published columns that nothing of ours corresponds to."""
        known = {name for row in self.published.values() for name in row}
        return [f"published.{name}: is no column; use {', '.join(self.columns)}" for name in known - {*self.columns}]


@dataclass(frozen=True, kw_only=True)
class Need(Section):
    """A model, a data set, or a run that several tables share."""

    path: PathText | None = None
    """Where commands look for it; left out, it is read from the hub."""
    source: str = ""
    """Where it comes from: its name on the hub, or an address."""
    train: str | None = None
    """Command of lab.fit that makes it, resumed where it is unfinished; or of lab.longrecipe."""
    needs: tuple[str, ...] = ()
    """What that command needs."""
    licence: str = ""
    """A data set's licence."""
    size: str = ""
    """A data set's size."""
    fields: str = ""
    """A data set's fields."""
    read_by: str = ""
    """The setting or option that reads a data set."""


@dataclass(frozen=True, kw_only=True)
class Needs(Section):
    """The file needs.yaml."""

    data: dict[str, Need]
    """Data sets."""
    models: dict[str, Need]
    """Models with weights that are downloaded."""
    runs: dict[str, Need]
    """Runs that several tables share."""
    left_out: dict[str, str]
    """Tables and figures without a YAML file, PAPER/TABLE, and why."""

    @property
    def known(self) -> Mapping[str, Need]:
        """All by name."""
        return {**self.data, **self.models, **self.runs}

    def closure(self, names: Iterator[str]) -> dict[str, Need]:
        """Add what the named ones need in turn; those come first."""
        out: dict[str, Need] = {}
        for name in names:
            need = look_up(self.known, name, "needs")
            out |= {**self.closure(iter(need.needs)), name: need}
        return out


@cache
def needs() -> Needs:
    """Read needs.yaml.

    Raises: ConfigError.
    """
    found: Needs = validated(Needs, read_yaml(HOME / "needs.yaml"))
    return found


def names() -> list[str]:
    """List the tables, PAPER/TABLE, in the papers' order."""
    return [f"{paper}/{path.stem}" for paper in PAPERS for path in sorted((HOME / paper).glob("*.yaml"))]


def read_table(name: str) -> Table:
    """Read a table's file.

    Raises: ConfigError, each line beginning with the table's name.
    """
    if name in needs().left_out:
        raise ConfigError(f"TABLE={name}: has no command: {needs().left_out[name]}")
    if name not in names():
        raise ConfigError(f"TABLE={name}: no such table; {nearest(name, names())}")
    try:
        table: Table = validated(Table, read_yaml(HOME / f"{name}.yaml"))
    except ConfigError as error:
        raise ConfigError(*(f"{name}: {fault}" for fault in error.faults)) from error
    return table
