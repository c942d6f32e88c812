"""Join results of any evaluations into one table, and mark the differences that are significant.

    probe-lab compare PATH [PATH ...] [--by FIELD,FIELD] [--full] [--power] [-o FOLDER]

PATH is a run folder, a folder of results, a table of runs (.jsonl.xz), or a .jsonl file of rows. Rows may be of
training's own probes, or of the commands probe, distance, ruler, passkey, lines, perplexity, recall or harness:

    probe-lab compare runs/tiny_2k/eval --by method
    probe-lab compare runs/windows-* --by window -o results
    probe-lab compare experiments/window/records/W_1M.jsonl.xz

Each line is a metric, reach first, then accuracy by rising distance. Each column is a condition: runs that differ only
in seeds, or what --by names: model, checkpoint, method, precision, length, metric, any column of the rows, or any
setting of the runs' config.yaml (window, or in full data.window). Results of other protocols, texts, numbers of needles
or seeds never share a line. With --by a setting, the texts of each run's own corpus do.

Without --full the table has at most 25 lines, each run under the method that it trained with, and no runs that others
start from. --replicate=start.path makes bases that differ, as continuations until one retrieves, replicates too.

A number is the mean over seeds, with 95% limits (lab/results/statistics.py). Seeds of which one is censored have no
mean, but the least and the most. Seeds that all found all are a line below the table. --by run.name shows each run.
Differences from the first column are tested: shares by Fisher's exact test, means over four seeds and more by the
paired t test or Welch's. Holm's method adjusts all p of a table together. A second line of reach has its growth from
column to column: the mean difference of ln reach of the same seeds. Where a reach is only bounded, the least difference
counts.

Where nothing is shown, --power prints how many seeds of each column the same test needs to show the difference seen in
80% of experiments, with limits that come from the spread of the seeds so far. The true difference may be another one.

Prints the table; -o writes its results to compare.jsonl.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run_evaluation
from eval.engine.text import WIDEST, Result, fitted, natural_key, pivot
from lab.analysis.conditions import condition_settings, define_names, find_differences
from lab.analysis.table import ResultTable, bound_reach, list_results, read_result_table, unpacked
from lab.core.chart_style import CENSORED, range_of
from lab.core.command import show, start
from lab.core.errors import ConfigError, DataError, suggest
from lab.core.schema import Section
from lab.core.types import CONFIDENCE, Row
from lab.probe.limits import share_limits
from lab.results import statistics
from lab.results.statistics import FEWEST, LEVEL, MOST_SEEDS, NONE, POWER, Verdict, bound_seeds

COLUMNS = ["model", "checkpoint", "method", "precision", "weights"]  # what a column is, unless --by names it
LINE = ["metric", "distance", "length"]
INTERNAL = ["record", "settings", "by_seed", "origin", "run", "base", "file", "verdict"]  # fields of no row of results
GROWTH = "growth of ln reach"
FORMS = {"share": ".1f", "percent": ".1f", "tokens": ",.1f", "pairs": ",.0f", "ln": ".3f"}
ENDS = {"percent": (0, 100), "tokens": (0, math.inf), "pairs": (0, math.inf)}


class CompareOptions(Section):
    """Options of this command."""

    by: tuple[str, ...] = ()
    """Fields, with commas between them, that columns are: of the rows, or settings of the runs; default: condition,
    checkpoint and method."""
    full: bool = False
    """All lines, methods and bases."""
    power: bool = False
    """Print the seeds that differences need which are not shown."""
    replicate: tuple[str, ...] = ()
    """Settings, with commas between them, whose values are replicates, as seeds are: start.path."""


def join(request: Request) -> Result:
    """Read all results, and return the table."""
    options: CompareOptions = request.options
    with unpacked(request.positional) as places:
        table = read_result_table(places, options.replicate)
        for run in table.settings.keys() - set(table.rows.run):
            raise DataError(
                f"{run}: no results of an evaluation; give a folder that has some, or a .jsonl file of rows"
            )
        # A table without a word about skipped rows would look complete.
        if table.skipped:
            show(f"skipped rows of {', '.join(table.skipped)}, which are joined with no others", error=True)
        cells, notes = arrange(table, options.by, full=options.full)
    known = cells.drop(columns=INTERNAL).astype(object)
    rows = [row.dropna().to_dict() for _, row in known.iterrows()]
    text = format_table(cells, notes, full=options.full)
    if options.power:
        text = "\n".join([text, "", *describe_power(cells)])
    return request.save("compare", text, rows)


def arrange(table: ResultTable, by: Sequence[str] = (), *, full: bool = True) -> tuple[pd.DataFrame, list[str]]:
    """Put results into lines and columns, test the differences to the first column, and note what was omitted.

    The newest checkpoint of a model and method is taken, unless the columns are checkpoints. Of a result that appears
    repeatedly, the one of more tests is taken, or the later one.
    """
    frame = add_conditions(table)
    notes: list[str] = []
    if not full:
        frame, notes = select_usual(frame, by, table)
    is_setting = any(list(map(partial(add_field, frame), by)))
    if "checkpoint" not in by:
        newest = frame.groupby(["measure", "model", "method"], dropna=False).checkpoint.transform("max")
        is_older = frame.checkpoint != newest
        if is_older.any():
            notes.append(f"{is_older.sum():,} results of older checkpoints are omitted; --by=checkpoint shows them.")
            frame = frame[~is_older].copy()
    lines, columns = choose_keys(frame, list(dict.fromkeys(by)), is_setting)
    # The sort is stable: of equal numbers of tests, the later result comes last and is kept.
    rising = frame.sort_values("n", kind="stable", na_position="first")
    once = rising.drop_duplicates([*lines, *columns, "seed_of_run"], keep="last").sort_index()
    groups = once.groupby([*lines, *columns], sort=False, dropna=False)
    cells = pd.DataFrame([average_seeds(rows) for _, rows in groups])
    cells["line"] = name_lines(cells, lines)
    add_headings(cells, columns)
    cells = pd.concat([cells, pd.DataFrame(list_growth(cells))], ignore_index=True)
    add_p_values(cells)
    # Reach is the answer and comes first, then accuracy by distance; f, lengths and other measures follow.
    is_growth, is_reach = cells.metric == GROWTH, cells.metric.str.startswith("reach")
    cells["rank"] = np.select([is_growth, is_reach, cells.distance.notna() & (cells.unit == "share")], [1, 0, 2], 3)
    order = ["rank", "distance", "metric", "length", "line", "number"]
    return cells.sort_values(order, ignore_index=True, kind="stable"), notes


def add_conditions(table: ResultTable) -> pd.DataFrame:
    """Name models by their conditions, whose checkpoints get common names, and add the settings that differ."""
    frame = table.rows.copy()
    for name in ("model", "precision", "weights"):
        frame[name] = [line.get(name, "") for line in frame.record]
    frame["settings"] = [table.settings.get(run, {}) for run in frame.run]
    own = condition_settings(table.settings, table.replicate)
    for name in find_differences(own):
        frame[name] = [str(own.get(run, {}).get(name)) for run in frame.run]
    frame["condition"] = frame.condition.astype(object).fillna(frame.model)
    # A condition of one run has the run's name.
    is_one = frame.groupby("condition").run.transform("nunique") <= 1
    frame["model"] = frame.model.where(is_one, frame.condition)
    frame["seed_of_run"] = frame.replicate.astype(str)
    # They follow from run and checkpoint.
    frame[["precision", "weights"]] = frame[["precision", "weights"]].mask(frame.run != "", "")
    # Seeds end some tokens apart, so that their checkpoints are matched by number and named as the first one's.
    frame["checkpoint"] = frame.checkpoint.fillna("").astype(str)
    number = frame.groupby(["condition", "run", "measure"]).checkpoint.rank("dense")
    frame["checkpoint"] = frame.groupby(["condition", "measure", number]).checkpoint.transform("first")
    return frame


def select_usual(frame: pd.DataFrame, by: Sequence[str], table: ResultTable) -> tuple[pd.DataFrame, list[str]]:
    """Select results of runs under the methods that they trained with, without bases; note what is omitted."""
    notes = []
    is_base = frame.is_base.eq(True)
    if is_base.any() and not is_base.all():
        bases = frame.run[is_base].unique()
        tokens = sorted({table.settings[base].get("train.tokens", 0) for base in bases})
        listed = ", ".join(f"{n:,}" for n in tokens)
        notes.append(f"{len(bases)} runs that others start from, of {listed} tokens, are not in the table.")
        frame = frame[~is_base]
    if "method" not in by:
        trained = frame[[file.name == "probes.jsonl" for file in frame.file]].groupby("run").method.first()
        is_other = frame.method != frame.run.map(trained).astype(object).fillna(frame.method)
        if others := frame.method[is_other].nunique():
            notes.append(f"{others} other position methods are not in the table; --full or --by=method shows them.")
        frame = frame[~is_other]
    return frame.copy(), notes


def add_field(frame: pd.DataFrame, name: str) -> bool:
    """Add a column that --by names, and return whether it is a setting, which may be named by its last part."""
    if name in ("measure", *COLUMNS, *LINE):
        return False
    rows = [{**settings, **record} for settings, record in zip(frame.settings, frame.record, strict=True)]
    values = pd.DataFrame(rows, frame.index, dtype=object)
    # Of several that end so, a field of the records is meant, or the setting with the fewest sections above it.
    fields = [field for field in values if f".{field}".endswith(f".{name}")]
    if not fields:
        hint = suggest(name, [*COLUMNS, *LINE, *values])
        raise ConfigError(f"--by={name}: no record and no config.yaml has this field; {hint}")
    field = min(fields, key=lambda field: field.count("."))
    frame[name] = values[field].map(lambda value: str(value) if isinstance(value, list | dict) else value)
    return "." in field


def choose_keys(frame: pd.DataFrame, by: list[str], is_setting: bool) -> tuple[list[str], list[str]]:
    """Choose the fields of lines and of columns, so that no cell holds results that cannot be compared.

    Where some condition has several seeds, the seed of the tests, which may be the run's, is no criterion; where
    columns are settings of runs, or a condition has texts of several seeds, neither are the texts of the runs' corpora.
    """
    # Objects, because a column of 4 and None would become floats and 4 differ from 4.0 as text.
    fields = pd.DataFrame(list(frame.alike), index=frame.index, dtype=object)
    fields = fields.drop(columns=[*LINE, *by], errors="ignore").map(json.dumps)
    if is_setting or frame.groupby("condition").seed_of_run.nunique().max() > 1:
        of_run = fields.columns.intersection(["haystack", "texts", "seed"])
        fields[of_run] = fields[of_run].mask(frame.settings.map(bool))
    frame[fields.columns] = fields
    lines = [name for name in LINE if name not in by] + list(fields)
    if not by:
        return lines, COLUMNS
    follows = ["model", "checkpoint", "weights"] if is_setting else []  # from a run's settings
    lines += [name for name in COLUMNS if name not in (*by, *follows)]
    # Settings follow from the columns, unless runs of one column differ in them.
    groups = frame.groupby([*lines, *by], dropna=False)
    settings = [name for name in frame if "." in name and name not in by]
    return lines + [name for name in settings if groups[name].nunique(dropna=False).max() > 1], by


def average_seeds(rows: pd.DataFrame) -> Row:
    """Average the results of one cell, one for each seed; return a range if one of them is censored."""
    # A result below the first value tested has no score: the range shows that value with a mark.
    first = rows["first"].astype(float)
    values = rows.score.astype(float).fillna(first)
    n, unit = len(rows), rows.unit.iloc[0]
    by_seed = {row.seed_of_run: row for row in rows.itertuples()}
    cell: Row = rows.iloc[-1].to_dict() | {"seeds": n, "by_seed": by_seed, "floor": 0.0}
    cell |= {"range": None, "agreement": None}
    if rows.censored.notna().any():
        # Where the limits go beyond the first value, the model may retrieve there, and no number is determined.
        is_open = rows.metric.str.startswith("reach") & (rows.censored == "below") & (rows.high != first)
        parts = []
        if not is_open.all():
            parts.append(range_of(values[~is_open], rows.censored[~is_open].map(CENSORED)))
        if is_open.any():
            parts.append("not determined" if n == 1 else f"{is_open.sum()} not determined")
            if n == 1 and (best := cell["record"].get("best_distance")) is not None:
                parts.append(f"best at {best:,}")
        cell["range"] = ", ".join(parts)
        if n > 1:
            cell |= dict.fromkeys(("score", "low", "high"), np.nan)
    elif n > 1:
        is_share = unit == "share"
        mean, low, high = statistics.mean_with_limits(values.tolist(), ends=statistics.SHARES if is_share else None)
        least, most = ENDS.get(unit, (-math.inf, math.inf))
        cell |= {"score": mean, "low": max(low, least), "high": min(high, most)}
        if is_share and rows.passed.notna().all():  # of independent tests
            # The spread of the seeds may be 0 by chance, but not below that of the tests.
            cell["floor"] = np.mean([statistics.binomial_variance(row.score, row.n) for row in by_seed.values()])
            if mean in statistics.SHARES:
                # Limits over seeds that all agree would say more than their tests do.
                tests, what = int(rows.n.min()), "all" if mean else "none"
                limits = " to ".join(f"{100 * end:.3g}" for end in share_limits(tests * int(mean), tests, CONFIDENCE))
                cell |= {"range": what, "low": None, "high": None}
                cell["agreement"] = f"{what}: {n} of {n} seeds found {what} (each {limits})."
    return cell


def name_lines(cells: pd.DataFrame, lines: Sequence[str]) -> pd.Series[str]:
    """Name lines by metric, distance or length, and by the fields that distinguish lines of the same name."""
    out = cells.metric if "metric" in lines else pd.Series("", cells.index)
    for name in [name for name in LINE[1:] if name in lines]:
        out = out + cells[name].astype(float).map(lambda n: f" at {n:,.0f}" if n > 0 else "")
    first = out = out.str.strip()
    for name in lines:
        if name not in LINE:
            # Unknown values are text too: pandas counts nan as no value, so that two lines would have one name.
            text = cells[name].astype(object).fillna("-").astype(str)
            if name not in COLUMNS:
                text = f"{name}=" + text
            out = out.where(text.groupby(first).transform("nunique") <= 1, out + " " + text)
    return out


def add_headings(cells: pd.DataFrame, columns: Sequence[str]) -> None:
    """Add the heading of each cell's column, with the number of its seeds, and the column's number from the left."""
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
    cells["column_seeds"] = cells.groupby("number").seeds.transform("max")
    n = cells.column_seeds.map(lambda n: f", n = {n}" if n > 1 else "")
    cells["column"] = cells[shown].map(format_heading).agg(", ".join, axis="columns") + n


def add_p_values(cells: pd.DataFrame) -> None:
    """Test every result against the first column of its line. Add the test, p, and p adjusted over the table."""
    # A line without a result in the first column has nothing to be compared with.
    base = {cell.line: cell for cell in cells.itertuples() if cell.number == 0}
    cells["compared"] = (cells.number > 0) & cells.line.isin([*base])
    verdicts = [compute_verdict(base[cell.line], cell) if cell.compared else NONE for cell in cells.itertuples()]
    cells["verdict"] = verdicts
    cells["test"] = [verdict.test for verdict in verdicts]
    cells["p"] = [verdict.p for verdict in verdicts]
    cells["p_adjusted"] = statistics.holm(cells.p)


def compute_verdict(first: Any, second: Any) -> Verdict:
    """Test the difference of two results of one line; one that is censored has no score over seeds."""
    if max(first.seeds, second.seeds) == 1:
        if pd.isna(first.passed) or pd.isna(second.passed):
            return NONE
        return statistics.compare_shares((first.passed, second.passed), (first.n, second.n))
    if pd.isna(first.score) or pd.isna(second.score):
        return NONE
    ours, theirs = ({seed: row.score for seed, row in cell.by_seed.items()} for cell in (first, second))
    return statistics.compare_over_seeds(ours, theirs, (first.floor + second.floor) / 2)


def list_growth(cells: pd.DataFrame) -> Iterator[Row]:
    """Compare ln reach of each column with that of the column before, over the seeds that both have."""
    reaches = cells[cells.metric.str.startswith("reach") & (cells.seeds > 1)].sort_values("number")
    for line, columns in reaches.groupby("line"):
        for first, second in itertools.pairwise(columns.itertuples()):
            seeds = first.by_seed.keys() & second.by_seed.keys()
            differences = [least_growth(first.by_seed[seed], second.by_seed[seed]) for seed in seeds]
            known = [difference for difference in differences if difference is not None]
            if len(known) > 1:
                mean, low, high = statistics.mean_with_limits(known)
                row = {name: getattr(second, name) for name in ("number", "column", "model", "column_seeds")}
                row |= {"line": line.replace(second.metric, GROWTH), "metric": GROWTH, "unit": "ln"}
                yield row | {"seeds": len(known), "score": mean, "low": low, "high": high}


def least_growth(first: Any, second: Any) -> float | None:
    """Return the least difference of ln reach, second less first, that the tests of a seed allow; None if it has none.

    A reach at the end of what was tested is that distance at least, and the window at most.
    """
    ends: list[float] = []
    for row in (first, second):
        ends += bound_reach(row.score, row.high, row.last, row.settings.get("data.window") or math.inf)
    low, high, other_low, other_high = ends
    least, most = other_low - high, other_high - low
    nearest = min(max(0.0, least), most)
    # A difference of either sign tells something only if both reaches are bounded on both sides.
    return nearest if nearest or math.isfinite(most - least) else None


def format_table(cells: pd.DataFrame, notes: Sequence[str], *, full: bool) -> str:
    """Write the table and its notes; without `full` in at most 25 lines, of evenly spaced distances."""
    order = list(dict.fromkeys(cells.line))
    n_fixed = cells.line[cells["rank"] < 2].nunique()
    rest = order[n_fixed:]
    if not full:
        rest = [*cells.line[cells["rank"] == 2].unique()] or rest
    n = len(rest)
    while True:
        kept = order[:n_fixed] + [rest[index] for index in np.linspace(0, len(rest) - 1, n).round().astype(int)]
        shown = cells[cells.line.isin(kept)]
        below = [*describe_marks(shown), *notes]
        if len(kept) < len(order):
            below.append(f"{len(order) - len(kept)} lines are omitted; --full shows them.")
        lines = [*fitted(to_table(shown)).split("\n"), ""]
        for note in [*(below if full else [" ".join(below)]), *define_names(cells.column.unique())]:
            lines += wrap(note, WIDEST)
        if full or len(lines) <= 25 or n < 2:
            return "\n".join(lines)
        n -= 1


def to_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Spread the cells as text; - is no result."""
    texts = cells.assign(text=[write_cell(cell) for cell in cells.itertuples()])
    table = pivot(texts, "line", "column", "text").fillna("-").rename_axis(index=None, columns=None)
    return table[cells.sort_values("number").column.unique()]


def format_heading(value: object) -> str:
    """Write a value of a heading."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if isinstance(value, int | float) and value % 1 == 0 else str(value)


def write_cell(cell: Any) -> str:
    """Write a score with its limits, shares in percent: 50.0 (25.0 to 75.0), n=8; * is significant, ? not tested."""
    score, low, high = (write_number(number, cell.unit) for number in (cell.score, cell.low, cell.high))
    text = cell.range if isinstance(cell.range, str) else score
    if score and low and high:
        text += f" ({low} to {high})"
    elif score and low and cell.unit == "tokens":
        text += f" ({low} or more)"
    if cell.seeds != cell.column_seeds:
        text += f", {cell.seeds} seeds"
    elif cell.seeds == 1 and pd.notna(cell.n):
        text += f", n={cell.n:,.0f}"
    if cell.dips and cell.seeds == 1:  # distances nearer than reach that fail
        text += ", a dip"
    # nan, of a result without a test, is not <= LEVEL.
    if cell.p_adjusted <= LEVEL:
        return f"{text}*"
    return f"{text}?" if cell.compared and pd.isna(cell.test) else text


def write_number(value: float, unit: str) -> str:
    """Write a score or a limit of a unit, without the .0 of tokens; nothing if it is not known."""
    if pd.isna(value):
        return ""
    text = format(100 * value if unit == "share" else value, FORMS.get(unit, ".4g"))
    if unit == "ln":
        return re.sub(r"\b0\.", ".", text)
    return text.removesuffix(".0") if unit == "tokens" else text


def describe_marks(cells: pd.DataFrame) -> list[str]:
    """Explain the marks and the tests."""
    notes = ["Shares in percent."]
    if (cells.seeds > 1).any():
        notes.append("Means over seeds with 95% limits; of censored seeds the least and the most: < below, + beyond.")
    if (cells.metric == GROWTH).any():
        notes.append("Growth is the mean difference of the seeds from the column before, of bounded reaches the least.")
    notes += [*cells.agreement.dropna().unique()]
    if cells.test.notna().any():
        named = ", ".join(f"{name} ({count})" for name, count in cells.test.value_counts().items())
        first = cells.column[cells.number == 0].iloc[0]
        notes.append(f"* differs from {first} at {LEVEL:g}, p adjusted by Holm: {named}.")
    if untested := (cells.compared & cells.test.isna()).sum():
        notes.append(f"? no test ({untested}): fewer than {FEWEST} seeds, censored, or no shares of tests.")
    return notes


def describe_power(cells: pd.DataFrame) -> list[str]:
    """Write the seeds that each difference over seeds needs which is not shown."""
    lines = [
        "seeds of each column that show the difference seen from "
        f"{cells.column[cells.number == 0].iloc[0]}, power {POWER:g} at {LEVEL:g}, unadjusted:"
    ]
    for cell in cells[(cells.p_adjusted > LEVEL) & (cells.seeds > 1)].itertuples():
        if math.isfinite(cell.verdict.degrees):
            needed, low, high = [f"{n:,.0f}".replace("inf", f"over {MOST_SEEDS}") for n in bound_seeds(cell.verdict)]
            lines.append(f"  {cell.line}, {cell.column}: {needed} ({low} to {high})")
    if len(lines) == 1:
        return ["--power has no difference to list: each has been shown, or has no test over seeds"]
    return lines


SPEC = EvaluationSpec(
    name="compare",
    description=__doc__,
    options=CompareOptions,
    excluded=OF_RUNS,
    each=False,
    takes=list_results,
    missing="PATH: must be set; give a run folder, a folder of results, or a .jsonl file, before the options",
)
main = partial(run_evaluation, SPEC, join)


if __name__ == "__main__":
    start(main)
