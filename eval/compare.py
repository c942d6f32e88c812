"""Join results of any evaluations into one table, and mark the differences that are significant.

    probe-lab compare PATH [PATH ...] [--by FIELD,FIELD] [-o FOLDER]

PATH is a run folder, a folder of results, or a .jsonl file of rows. Rows may be of training's own probes, or of the
commands probe, distance, ruler, passkey, lines, perplexity or harness:

    probe-lab compare runs/tiny_2k/eval --by method
    probe-lab compare runs/windows-* --by window -o results

Each line is a task at a length. Each column is a model with its position methods, or what --by names: model,
checkpoint, method, precision, length, task, any column of the rows, or any setting of the runs' config.yaml (window, or
in full data.window). Results of other protocols, texts, numbers of needles or seeds never share a line. With --by a
setting, the texts of each run's own corpus do. A probe's summary gives lines of its own: effective length, reach, f at
each.

Runs that differ only in run.seed are one column: the mean of each score over the seeds, with 95% limits
(lab/runs/arms.py). Seeds of which one is censored have no mean, but the least and the most. --by model shows each run.
Differences to the first column are tested. Outcomes of the same tests take McNemar's exact test, or the paired t test
where they are not 0 or 1. Other shares take Fisher's exact test. Probes that stopped early are compared by their exact
limits, means over four seeds and more by the paired t test or Welch's. Holm's method adjusts all p of a table together.

Prints the table; -o writes its results to compare.jsonl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run
from eval.engine.grid_text import describe_marks, format_heading, to_table
from eval.engine.records import COLUMNS, WIDER, list_results, read_records
from eval.engine.rows import WIDEST, Result, fitted, natural_key
from eval.engine.seeds import binomial_variance
from eval.engine.statistics import add_p_values
from lab.core.chart_style import CENSORED, range_of
from lab.core.command import start
from lab.core.errors import ConfigError, suggest
from lab.core.schema import Section
from lab.core.types import Row
from lab.runs.arms import SHARES, find_differences, mean_with_limits, name_arms, with_bases
from lab.runs.conditions import define_names
from lab.runs.tables import unpacked

RANGES = {"share": (0, 1), "percent": (0, 100), "tokens": (0, np.inf), "pairs": (0, np.inf)}  # of units
LINE = ["evaluation", "unit", "task", "length"]


def arrange(records: pd.DataFrame, by: Sequence[str] = ()) -> tuple[pd.DataFrame, int]:
    """Put results into lines and columns, test the differences to the first column, and count older results.

    The newest checkpoint of a model and method is taken, unless the columns are checkpoints. Of a result that appears
    repeatedly, the one of more tests is taken, or the later one.
    """
    frame = add_arms(records)
    is_setting = False
    for name in by:
        is_setting |= add_field(frame, name)
    if "model" in by:
        frame["model"] = records.model
    results = frame
    if "checkpoint" not in by:
        newest = frame.checkpoint.groupby([frame.evaluation, frame.model, frame.method]).transform("max")
        results = frame[frame.checkpoint == newest]
    results = results.copy()
    lines, columns = choose_keys(results, list(dict.fromkeys(by)), is_setting)
    # The sort is stable: of equal numbers of tests, the later result comes last and is kept.
    rising = results.sort_values("n", kind="stable", na_position="first")
    once = rising.drop_duplicates([*lines, *columns, "run_seed"], keep="last").sort_index()
    groups = once.groupby([*lines, *columns], sort=False, dropna=False)
    cells = pd.DataFrame([mean_over_seeds(rows) for _, rows in groups])
    cells["line"] = name_lines(cells, lines)
    add_headings(cells, columns)
    order = [*(name for name in LINE if name in lines), "line", "number"]
    return add_p_values(cells).sort_values(order, ignore_index=True), len(frame) - len(results)


def add_headings(cells: pd.DataFrame, columns: Sequence[str]) -> None:
    """Add the heading of each cell's column, and the column's number from the left."""
    keys = list(cells[columns].astype(object).itertuples(index=False, name=None))
    unique = list(dict.fromkeys(keys))
    if len({re.sub(r"[\d.]", "", str(key)) for key in unique}) == 1:
        # Keys that differ in their numbers alone: step_2 comes before step_10.
        unique.sort(key=lambda key: natural_key(str(key)))
    cells["number"] = [unique.index(key) for key in keys]
    shown = list(columns)
    # Skip fields that are the same in all columns, or follow from the others: backwards, so that the first ones stay.
    for name in reversed(columns):
        others = [other for other in shown if other != name]
        if others and len(cells[others].drop_duplicates()) == len(unique):
            shown = others
    cells["column"] = cells[shown].map(format_heading).agg(", ".join, axis="columns")


def add_arms(records: pd.DataFrame) -> pd.DataFrame:
    """Add the settings in which runs differ, and name models by their arms, whose checkpoints get common names."""
    frame = records.reindex(columns=list(dict.fromkeys([*records, "length", "checkpoint", "weights"])))
    has_run = records.run != ""
    recorded = dict(zip(frame.run[has_run], frame.settings[has_run], strict=True))
    settings = with_bases(recorded)
    frame["settings"] = frame.run.map(lambda run: settings.get(run, {}))
    for name in find_differences(settings):
        frame[name] = read_setting(frame, name)
    frame["arm"] = frame.run.map(name_arms(recorded)).astype(object).fillna(frame.model)
    frame["model"] = frame.model.where(frame.groupby("arm").model.transform("nunique") == 1, frame.arm)
    frame["run_seed"] = read_setting(frame, "run.seed")
    frame["length"] = frame.length.fillna(0).astype(int)
    frame["weights"] = frame.weights.mask(has_run)  # follow from run and checkpoint
    # Seeds end some tokens apart, so that their checkpoints are matched by number and named as the first one's.
    checkpoints = frame.checkpoint.fillna("").astype(str)
    number = checkpoints.groupby([frame.arm, records.model, frame.evaluation]).rank("dense")
    frame["checkpoint"] = checkpoints.groupby([frame.arm, frame.evaluation, number]).transform("first")
    return frame


def read_setting(frame: pd.DataFrame, name: str) -> pd.Series[str]:
    return frame.settings.map(lambda config: str(config.get(name)))


def add_field(frame: pd.DataFrame, name: str) -> bool:
    """Add a column that --by names, and return whether it is a setting, which may be named by its last part."""
    if name in KNOWN or name in LINE:
        return False
    columns: dict[str, None] = {}
    settings: dict[str, None] = {}
    for row, config in zip(frame.row, frame.settings, strict=True):
        columns |= dict.fromkeys(row)
        settings |= dict.fromkeys(config)
    ends = [setting for setting in settings if f".{setting}".endswith(f".{name}")]
    if name in columns:
        values = [row.get(name) for row in frame.row]
    elif ends:
        # Of several settings that end so, the one with the fewest sections above it is meant.
        full_name = min(ends, key=lambda setting: setting.count("."))
        values = [config.get(full_name) for config in frame.settings]
    else:
        hint = suggest(name, [*COLUMNS, *WIDER, *LINE, *columns, *settings])
        raise ConfigError(f"--by={name}: no record and no config.yaml has this field; {hint}")
    frame[name] = [x if x is None or isinstance(x, int | float | str) else json.dumps(x) for x in values]
    return name not in columns


def choose_keys(frame: pd.DataFrame, by: list[str], is_setting: bool) -> tuple[list[str], list[str]]:
    """Choose the fields of lines and of columns, so that no cell holds results that cannot be compared.

    Where some arm has several seeds, the seed of the tests, which may be the run's, is no criterion; where columns are
    settings of runs, or an arm has corpora of several seeds, neither are the texts of the runs' own corpora.
    """

    def varying(keys: list[str], names: Sequence[str]) -> list[str]:
        groups = frame.groupby(keys, dropna=False)
        return [name for name in names if groups[name].nunique(dropna=False).max() > 1]

    of_run = ["seed"] if frame.groupby("arm").run_seed.nunique().max() > 1 else []
    corpora = read_setting(frame, "data.corpus.seed")
    if is_setting or corpora.groupby(frame.arm).nunique().max() > 1:
        of_run = ["haystack", "texts", "seed"]
    # Objects, because a column of 4 and None would become floats and 4 differ from 4.0 as text.
    fields = pd.DataFrame(list(frame.alike), index=frame.index, dtype=object).drop(columns=by, errors="ignore")
    for name in fields:
        frame[name] = fields[name].map(json.dumps)
        if name in of_run:
            frame[name] = frame[name].mask(frame.settings.map(bool))
    lines = [name for name in LINE if name not in by]
    # A field is part of a line's key only if results of the line differ in it.
    lines += varying(lines, list(fields))
    if not by:
        return lines, COLUMNS + varying(lines + COLUMNS, WIDER)
    follows = ["model", "checkpoint", "weights"] if is_setting else []  # from a run's settings
    lines += [name for name in COLUMNS + WIDER if name not in (*by, *follows)]
    return lines + varying([*lines, *by], [name for name in frame if "." in name and name not in by]), by


def mean_over_seeds(rows: pd.DataFrame) -> Row:
    """Average the records of one cell, one for each seed; return a range if one of them is censored."""
    # A result below the first value tested has no score: the range shows that value with a mark.
    values = rows.score.fillna(rows.below).astype(float)
    censored = int(rows.censored.count())
    counts = {"seeds": len(rows), "n_censored": censored, "dips": int(rows.dips.sum()), "floor": 0.0}
    cell: Row = rows.iloc[-1].to_dict() | counts | {"by_seed": {}}
    cell["range"] = range_of(values, rows.censored.map(CENSORED)) if censored else ""
    if len(rows) == 1:
        return cell
    if censored:
        return cell | dict.fromkeys(("score", "below", "low", "high"), np.nan)
    unit = rows.unit.iloc[0]
    mean, low, high = mean_with_limits(values.tolist(), ends=SHARES if unit == "share" else None)
    low, high = np.clip([low, high], *RANGES.get(unit, (-np.inf, np.inf))).tolist()
    if unit == "share" and rows.passed.notna().all():  # of independent tests
        # The spread of the seeds may be 0 by chance, but not below that of the tests.
        cell["floor"] = float(np.mean([binomial_variance(row.score, row.n) for row in rows.itertuples()]))
    return cell | {"by_seed": dict(zip(rows.run_seed, values)), "score": mean, "low": low, "high": high}


def name_lines(cells: pd.DataFrame, lines: Sequence[str]) -> pd.Series[str]:
    """Name lines by evaluation, task and length, and by the fields that distinguish lines of the same name."""
    first = pd.Series("", index=cells.index)
    for name in ("evaluation", "task"):
        if name in lines:
            first = first + cells[name] + " "
    if "length" in lines:
        # A task such as "96 tokens" names its length already.
        is_named = [f"{n} " in f"{task} " or n == 0 for n, task in zip(cells.length, cells.task, strict=True)]
        first = first.where(is_named, first + cells.length.map("{:,} tokens ".format))
    out = first = first.str.strip()
    for name in lines:
        if name in LINE:
            continue
        # Unknown values are text too: pandas counts nan as no value, so that two lines would have one name.
        text = cells[name].fillna("-").astype(str)
        is_alike = text.groupby(first).transform("nunique") <= 1
        if name not in COLUMNS and name not in WIDER:
            text = f"{name}=" + text
        out = out.where(is_alike, out + " " + text)
    return out


KNOWN = ["evaluation", "task", "length", *COLUMNS, *WIDER]  # fields of a result's row, with those of --by
COMPARED = ["alike", "n", "seeds", "score", "low", "high", "below", "range", "unit", "test", "p"]
COMPARED += ["p_adjusted", "p_exact", "seeds_needed"]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Section):
    """Options of this command."""

    by: tuple[str, ...] = ()
    """Fields, with commas between them, that columns are: of the rows, or settings of the runs; default: model,
    checkpoint and method."""


def join(request: Request) -> Result:
    """Read all results, and return the table."""
    with unpacked(request.positional) as places:
        cells, older = arrange(read_records(places), request.options.by)
    fields = [*dict.fromkeys([*KNOWN, *request.options.by]), *COMPARED]
    rows = []
    for record in cells[fields].rename(columns={"alike": "protocol"}).to_dict("records"):
        rows.append({name: value for name, value in record.items() if pd.notna(value) and value != ""})
    lines = [fitted(to_table(cells)), ""]
    for note in describe_marks(cells, older) + define_names(cells.column.unique()):
        lines += wrap(note, WIDEST)
    return request.save("compare", "\n".join(lines), rows)


SPEC = EvaluationSpec(
    name="compare",
    description=__doc__,
    options=CompareOptions,
    excluded=OF_RUNS,
    each=False,
    takes=list_results,
    missing="PATH: must be set; give a run folder, a folder of results, or a .jsonl file, before the options",
)
main = partial(run, SPEC, join)


if __name__ == "__main__":
    start(main)
