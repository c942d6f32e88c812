"""Arranges results in one table: a line for each task, a column for each model and method, or for what --by names.

A cell of several runs that differ only in their seed (lab/train/arms.py) is the mean over these, with its limits.
Where a seed failed at the first value tested, so that its number is only known to lie below, so does the mean. The
k-th checkpoints of such runs, whose tokens differ by less than a batch, count as one.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from eval.compare.differences import compare
from eval.engine.statistics import holm
from lab.errors import ConfigError
from lab.train.arms import ONLY, differing, mean_with_limits, name_arms

COLUMNS = ["model", "checkpoint", "method"]  # what a column is, unless --by names it
WIDER = ["precision", "weights"]  # and where two results of one task would else be in one cell
LINE = ["evaluation", "unit", "task", "length"]
OF_RUN = ["model", "checkpoint", "weights"]  # follow from a run's settings
TEXTS = ["haystack", "texts", "seed"]  # drawn from a run's own corpus
RANGES = {"share": (0, 1), "percent": (0, 100), "tokens": (0, np.inf), "pairs": (0, np.inf)}  # of units


@dataclass(frozen=True)
class Grid:
    """Results by `line` and `column`, what all columns have in common, and how many results were left out."""

    cells: pd.DataFrame
    by: list[str]
    common: str
    older: int
    again: int

    @property
    def name(self) -> str | None:
        """Name of what the columns are, where that is one setting or column of the rows."""
        return self.by[0] if len(self.by) == 1 and self.by[0] not in (*COLUMNS, *WIDER, *LINE) else None


def arrange(records: pd.DataFrame, by: Sequence[str] = ()) -> Grid:
    """Put results into lines and columns, fold seeds, and test the differences to the first column.

    The newest checkpoint of a model and method is taken, unless the columns are checkpoints. Of a result that appears
    twice, the one of more tests is taken, or the later one.

    Raises: ConfigError for a field that no record has.
    """
    frame = with_arms(records)
    added = [add_field(frame, name) for name in by]
    if "model" in by:
        frame["model"] = records.model
    newest = frame.checkpoint.groupby([frame.evaluation, frame.model, frame.method]).transform("max")
    kept = frame.copy() if "checkpoint" in by else frame[frame.checkpoint == newest].copy()
    lines, columns = choose_keys(kept, by, any(added))
    by_tests = kept.sort_values("n", kind="stable", na_position="first")
    once = by_tests.drop_duplicates([*lines, *columns, "run_seed"], keep="last").sort_index()
    groups = once.groupby([*lines, *columns], sort=False, dropna=False)
    cells = pd.DataFrame([fold(rows) for _, rows in groups])
    cells["line"] = line_names(cells, lines)
    common = add_columns(cells, columns, by)
    judge(cells)
    cells = cells.sort_values([*(name for name in LINE if name in lines), "line", "number"], ignore_index=True)
    return Grid(cells, columns, common, len(frame) - len(kept), len(kept) - len(once))


def choose_keys(frame: pd.DataFrame, by: Sequence[str], is_setting: bool) -> tuple[list[str], list[str]]:
    """Choose the fields of lines and of columns, so that no cell holds results that cannot be compared."""
    lines = [name for name in LINE if name not in by]
    lines += varying(frame, lines, add_alike(frame, by, is_setting))
    if not by:
        return lines, COLUMNS + varying(frame, lines + COLUMNS, WIDER)
    lines += [name for name in COLUMNS + WIDER if name not in by and not (is_setting and name in OF_RUN)]
    settings = [name for name in frame if "." in name and name not in by]
    return lines + varying(frame, [*lines, *by], settings), list(by)


def varying(frame: pd.DataFrame, keys: list[str], names: Sequence[str]) -> list[str]:
    """List the fields in which results of equal keys differ."""
    groups = frame.groupby(keys, dropna=False)
    return [name for name in names if groups[name].nunique(dropna=False).max() > 1]


def with_arms(records: pd.DataFrame) -> pd.DataFrame:
    """Add the settings in which runs differ, and name models by their arms, whose checkpoints get common names."""
    frame, has = records.copy(), records.run != ""
    settings = dict(zip(frame.run[has], frame.settings[has], strict=True))
    for name in differing(settings):
        frame[name] = [str(known.get(name)) for known in frame.settings]
    arms = name_arms(settings)
    frame["arm"] = [arms.get(run, model) for run, model in zip(frame.run, frame.model, strict=True)]
    models = frame.groupby("arm").model.unique()
    frame["model"] = frame.arm.map({arm: arm_name(str(arm), list(names)) for arm, names in models.items()})
    frame["run_seed"] = [str(known.get("run.seed")) for known in frame.settings]
    frame["length"] = frame.length.fillna(0).astype(int)
    frame["weights"] = frame.weights.mask(has)  # follow from run and checkpoint
    checkpoints = frame.checkpoint.fillna("").astype(str)
    number = checkpoints.groupby([frame.arm, records.model, frame.evaluation]).rank("dense")
    frame["checkpoint"] = checkpoints.groupby([frame.arm, frame.evaluation, number]).transform("first")
    return frame


def arm_name(arm: str, models: Sequence[str]) -> str:
    """Name an arm in the table: its only run, else its settings, else the beginning that its runs' names share.

    Example:
        >>> arm_name("window=96", ["a-0"]), arm_name("window=96", ["a-0", "a-1"]), arm_name("all", ["a-0", "a-1"])
        ('a-0', 'window=96', 'a-*')
    """
    if len(models) == 1 or arm != ONLY:
        return models[0] if len(models) == 1 else arm
    alike = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*models, strict=False))
    start = "".join(letters[0] for letters in alike).rstrip("-_.0123456789")
    return f"{start}-*" if start else " + ".join(models)


def add_field(frame: pd.DataFrame, name: str) -> bool:
    """Add a column that --by names, of the records or of the runs' settings, and return whether it is a setting.

    A setting may be named by its last part; of several the one of the fewest parts is meant.

    Raises: ConfigError.
    """
    if name in (*COLUMNS, *WIDER, *LINE):
        return False
    columns, settings = ({key: None for known in frame[of] for key in known} for of in ("row", "settings"))
    ends = sorted((s for s in settings if s == name or s.endswith(f".{name}")), key=lambda s: s.count("."))
    if name not in columns and not ends:
        near = difflib.get_close_matches(name, [*COLUMNS, *WIDER, *LINE, *columns, *settings], n=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(COLUMNS)}, length, task, or a setting"
        raise ConfigError(f"--by={name}: no record and no config.yaml has this field; {hint}")
    values = [row.get(name) for row in frame.row] if name in columns else [s.get(ends[0]) for s in frame.settings]
    frame[name] = [x if x is None or isinstance(x, int | float | str) else json.dumps(x) for x in values]
    return name not in columns


def add_alike(frame: pd.DataFrame, by: Sequence[str], by_setting: bool) -> list[str]:
    """Add what the results of a line agree in, and list its names.

    Where some arm has several seeds, the seed of the tests, which may be the run's, is no criterion; where columns are
    settings of runs, neither are the texts of the runs' own corpora.
    """
    known = pd.DataFrame(list(frame.alike), index=frame.index)
    of_run = TEXTS if by_setting else ["seed"] if frame.groupby("arm").run_seed.nunique().max() > 1 else []
    repeated = ["asked"] if {"length", "task"} & {*by} else []  # in the names of lines of line retrieval
    names = [name for name in known if name not in (*by, *repeated)]
    for name in names:
        frame[name] = known[name].map(json.dumps)
        if name in of_run:
            frame[name] = frame[name].mask(frame.settings.map(bool))
    return names


def fold(rows: pd.DataFrame) -> dict[str, Any]:
    """Fold the records of one cell, one for each seed, into their mean; a single one keeps its own limits."""
    bounds = rows.score.fillna(rows.below).astype(float)
    is_below = bool(rows.score.isna().any())
    cell: dict[str, Any] = rows.iloc[-1].to_dict() | {
        "seeds": len(rows),
        "by_seed": dict(zip(rows.run_seed, bounds, strict=True)),
    }
    if len(rows) == 1:
        return cell
    mean, low, high = mean_with_limits(bounds.tolist())
    if is_below:
        return cell | {"score": np.nan, "below": mean, "low": np.nan, "high": np.nan, "by_seed": {}}
    least, most = RANGES.get(rows.unit.iloc[0], (-np.inf, np.inf))
    return cell | {"score": mean, "low": float(np.clip(low, least, most)), "high": float(np.clip(high, least, most))}


def line_names(cells: pd.DataFrame, lines: Sequence[str]) -> pd.Series:
    """Name lines by evaluation, task and length, and by the fields that distinguish lines of the same name."""
    shown = pd.Series("", index=cells.index)
    for name in ("evaluation", "task"):
        shown = shown + (cells[name] + " " if name in lines else "")
    if "length" in lines:
        is_named = [f"{n} " in f"{task} " or n == 0 for n, task in zip(cells.length, cells.task, strict=True)]
        shown = shown.where(is_named, shown + cells.length.map("{:,} tokens ".format))
    first = shown.str.strip()
    out = first
    for name in (name for name in lines if name not in LINE):
        value = cells[name].astype(str)
        words = out + " " + (value if name in (*COLUMNS, *WIDER) else f"{name}=" + value)
        out = out.where(value.groupby(first).transform("nunique") <= 1, words)
    return out


def add_columns(cells: pd.DataFrame, columns: list[str], by: Sequence[str]) -> str:
    """Name and number the columns, numbers of --by rising, and return what all have in common."""
    keys = list(cells[columns].astype(object).itertuples(index=False, name=None))
    unique = list(dict.fromkeys(keys))
    if by:
        unique.sort(key=lambda key: [x if isinstance(x, int | float) and not pd.isna(x) else 0 for x in key])
    differ = [k for k in range(len(columns)) if len({key[k] for key in unique}) > 1]
    cells["number"] = [unique.index(key) for key in keys]
    cells["column"] = [", ".join(spelt(key[k]) for k in differ or [0]) for key in keys]
    return ", ".join(filter(None, (spelt(unique[0][k]) for k in range(len(columns)) if k not in differ)))


def spelt(value: Any) -> str:
    """Write a value of a heading.

    Example:
        >>> spelt(1024), spelt(2048.0), spelt(None), spelt(0.25), spelt(True)
        ('1,024', '2,048', '', '0.25', 'True')
    """
    if pd.isna(value):
        return ""
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    return f"{int(value):,}" if is_whole else str(value)


def judge(cells: pd.DataFrame) -> None:
    """Mark the best of every line, and test every result against the first column of its line."""
    value = cells.score.astype(float) * cells.better
    best = value.groupby(cells.line)
    cells["best"] = (value == best.transform("max")) & (best.transform("nunique") > 1) & (cells.better != 0)
    records = list(cells.itertuples())
    base = {record.line: record for record in records if record.number == 0}
    found = {r.Index: compare(base[r.line], r) for r in records if r.number and r.line in base}
    adjusted = holm({str(index): p for index, (_, p) in found.items() if p is not None})
    cells["compared"] = [index in found for index in cells.index]
    cells["test"] = [found.get(index, (None, None))[0] for index in cells.index]
    cells["p"] = [found.get(index, (None, None))[1] for index in cells.index]
    cells["p_adjusted"] = pd.Series([adjusted.get(str(index)) for index in cells.index], dtype=float)
