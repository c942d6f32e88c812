"""Join results of any evaluations into one table, and mark the differences that are significant.

    probe-lab compare PATH [PATH ...] [--by FIELD,FIELD] [--full] [-o FOLDER]

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
mean, but the least and the most. Seeds that all found all are a line below the table. --by model shows each run.
Differences from the first column are tested: shares by Fisher's exact test, means over four seeds and more by the
paired t test or Welch's. Holm's method adjusts all p of a table together. A second line of reach has its growth from
column to column: the mean difference of ln reach of the same seeds. Where a reach is only bounded, the least difference
counts.

Prints the table; -o writes its results to compare.jsonl.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run_evaluation
from eval.engine.text import WIDEST, Result, fitted, natural_key, pivot
from lab.analysis.conditions import condition_settings, define_names, find_differences, shorten_names
from lab.analysis.table import ResultTable, bound_reach, list_results, read_result_table, unpacked
from lab.core.chart_style import CENSORED, range_of
from lab.core.command import show, start
from lab.core.errors import ConfigError, DataError, suggest
from lab.core.schema import Section
from lab.core.types import CONFIDENCE, Row
from lab.probe.limits import share_limits
from lab.results import statistics
from lab.results.statistics import FEWEST, LEVEL, NONE, Verdict

COLUMNS = ["model", "checkpoint", "method"]  # what a column is, unless --by names it
WIDER = ["precision", "weights"]  # and where two results of one line would else be in one cell
LINE = ["metric", "unit", "distance", "length"]
GROWTH = "growth of ln reach"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Section):
    """Options of this command."""

    by: tuple[str, ...] = ()
    """Fields, with commas between them, that columns are: of the rows, or settings of the runs; default: condition,
    checkpoint and method."""
    full: bool = False
    """All lines, methods and bases."""
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
    fields = ["measure", "metric", "distance", "length", *COLUMNS, *WIDER, *options.by, "alike", "n", "seeds"]
    fields += ["score", "low", "high", "first", "range", "unit", "test", "p", "p_adjusted"]
    known = cells.reindex(columns=list(dict.fromkeys(fields))).rename(columns={"alike": "protocol"}).astype(object)
    rows = [row.dropna().to_dict() for _, row in known.iterrows()]
    return request.save("compare", format_table(cells, notes, full=options.full), rows)


def arrange(table: ResultTable, by: Sequence[str] = (), *, full: bool = True) -> tuple[pd.DataFrame, list[str]]:
    """Put results into lines and columns, test the differences to the first column, and note what was left out.

    The newest checkpoint of a model and method is taken, unless the columns are checkpoints. Of a result that appears
    repeatedly, the one of more tests is taken, or the later one.
    """
    frame = add_conditions(table)
    notes: list[str] = []
    if not full:
        frame, notes = select_usual(frame, by, table)
    is_setting = False
    for name in by:
        is_setting |= add_field(frame, name)
    if "model" in by:
        frame["model"] = frame.own_model
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
    add_p_values(cells)
    cells = pd.concat([cells, pd.DataFrame(list_growth(cells))], ignore_index=True)
    # Reach is the answer and comes first, then accuracy by distance; f, lengths and other measures follow.
    is_growth, is_reach = cells.line.str.startswith(GROWTH), cells.metric.str.startswith("reach")
    cells["rank"] = np.select([is_growth, is_reach, cells.distance.notna() & (cells.unit == "share")], [1, 0, 2], 3)
    order = ["rank", "distance", "metric", "length", "line", "number"]
    return cells.sort_values(order, ignore_index=True, kind="stable"), notes


def add_conditions(table: ResultTable) -> pd.DataFrame:
    """Name models by their conditions, whose checkpoints get common names, and add the settings that differ."""
    frame = table.rows.copy()
    for name in ("model", "precision", "weights"):
        frame[name] = [line.get(name) for line in frame.record]
    has_run = frame.run != ""
    frame["settings"] = [table.settings.get(run, {}) for run in frame.run]
    own = condition_settings(table.settings, table.replicate)
    for name in find_differences(own):
        frame[name] = [str(own.get(run, {}).get(name)) for run in frame.run]
    frame["own_model"] = frame.model
    frame["condition"] = frame.condition.where(has_run, frame.model)
    short, _ = shorten_names({run: each.name for run, each in table.conditions.items() if not each.is_base})
    # A condition of one run has the run's name.
    is_one = frame.groupby("condition").run.transform("nunique") <= 1
    frame["model"] = frame.model.where(is_one, frame.run.map(short).astype(object).fillna(frame.condition))
    frame["seed_of_run"] = frame.replicate.astype(str)
    frame["weights"] = frame.weights.mask(has_run)  # follow from run and checkpoint
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
        bases = frame[is_base].run.unique()
        tokens = sorted({table.settings[base].get("train.tokens", 0) for base in bases})
        listed = ", ".join(f"{n:,}" for n in tokens)
        notes.append(f"{len(bases)} runs that others start from, of {listed} tokens, are not in the table.")
        frame = frame[~is_base].copy()
    if "method" not in by:
        trained = frame[[file.name == "probes.jsonl" for file in frame.file]].groupby("run").method.first()
        is_other = frame.method != frame.run.map(trained).astype(object).fillna(frame.method)
        if is_other.any():
            others = frame[is_other].method.nunique()
            notes.append(f"{others} other position methods are not in the table; --full or --by=method shows them.")
            frame = frame[~is_other].copy()
    return frame, notes


def add_field(frame: pd.DataFrame, name: str) -> bool:
    """Add a column that --by names, and return whether it is a setting, which may be named by its last part."""
    if name in ("measure", *COLUMNS, *WIDER, *LINE):
        return False
    records = pd.DataFrame(list(frame.record), dtype=object)
    settings = pd.DataFrame(list(frame.settings), dtype=object)
    ends = [setting for setting in settings if f".{setting}".endswith(f".{name}")]
    if name in records:
        values = records[name]
    elif ends:
        # Of several settings that end so, the one with the fewest sections above it is meant.
        values = settings[min(ends, key=lambda setting: setting.count("."))]
    else:
        hint = suggest(name, [*COLUMNS, *WIDER, *LINE, *records, *settings])
        raise ConfigError(f"--by={name}: no record and no config.yaml has this field; {hint}")
    frame[name] = [x if x is None or isinstance(x, int | float | str) else json.dumps(x) for x in values]
    return name not in records


def choose_keys(frame: pd.DataFrame, by: list[str], is_setting: bool) -> tuple[list[str], list[str]]:
    """Choose the fields of lines and of columns, so that no cell holds results that cannot be compared.

    Where some condition has several seeds, the seed of the tests, which may be the run's, is no criterion; where
    columns are settings of runs, or a condition has texts of several seeds, neither are the texts of the runs' corpora.
    """

    def varying(keys: list[str], names: Sequence[str]) -> list[str]:
        groups = frame.groupby(keys, dropna=False)
        return [name for name in names if groups[name].nunique(dropna=False).max() > 1]

    of_run = []
    if is_setting or frame.groupby("condition").seed_of_run.nunique().max() > 1:
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


def average_seeds(rows: pd.DataFrame) -> Row:
    """Average the results of one cell, one for each seed; return a range if one of them is censored."""
    # A result below the first value tested has no score: the range shows that value with a mark.
    first = rows["first"].astype(float)
    values = rows.score.astype(float).fillna(first)
    n, unit = len(rows), rows.unit.iloc[0]
    cell: Row = rows.iloc[-1].to_dict() | {"seeds": n, "n_censored": rows.censored.count(), "dips": rows.dips.sum()}
    cell |= {"by_seed": {row.seed_of_run: row for row in rows.itertuples()}, "floor": 0.0}
    cell |= {"range": None, "agreement": None}
    if cell["n_censored"]:
        # Where the limits go beyond the first value, the model may retrieve there, and no number is determined.
        is_open = rows.metric.str.startswith("reach") & (rows.censored == "below") & (rows.high != first)
        parts = []
        if not is_open.all():
            parts.append(range_of(values[~is_open], rows.censored[~is_open].map(CENSORED)))
        if is_open.any():
            best = cell["record"].get("best_distance")
            parts.append("not determined" if n == 1 else f"{is_open.sum()} not determined")
            if n == 1 and best is not None:
                parts.append(f"best at {best:,}")
        cell["range"] = ", ".join(parts)
        if n > 1:
            cell |= dict.fromkeys(("score", "low", "high"), np.nan)
    elif n > 1:
        is_share = unit == "share"
        mean, low, high = statistics.mean_with_limits(values.tolist(), ends=statistics.SHARES if is_share else None)
        ends = {"percent": (0, 100), "tokens": (0, np.inf), "pairs": (0, np.inf)}.get(unit, (-np.inf, np.inf))
        cell |= {"score": mean, "low": max(low, ends[0]), "high": min(high, ends[1])}
        if is_share and rows.passed.notna().all():  # of independent tests
            # The spread of the seeds may be 0 by chance, but not below that of the tests.
            variances = [statistics.binomial_variance(row.score, row.n) for row in rows.itertuples()]
            cell["floor"] = float(np.mean(variances))
            if mean in statistics.SHARES and values.nunique() == 1:
                # Limits over seeds that all agree would say more than their tests do.
                tests, what = int(rows.n.min()), "all" if mean else "none"
                limits = " to ".join(f"{100 * end:.3g}" for end in share_limits(tests * int(mean), tests, CONFIDENCE))
                cell["agreement"] = f"{n} of {n} seeds found {what} (each {limits})"
    return cell


def name_lines(cells: pd.DataFrame, lines: Sequence[str]) -> pd.Series[str]:
    """Name lines by metric, distance or length, and by the fields that distinguish lines of the same name."""
    out = cells.metric if "metric" in lines else pd.Series("", cells.index)
    for name in [name for name in ("distance", "length") if name in lines]:
        out = out + cells[name].astype(float).map(lambda n: f" at {n:,.0f}" if n > 0 else "")
    first = out = out.str.strip()
    for name in lines:
        if name not in LINE:
            # Unknown values are text too: pandas counts nan as no value, so that two lines would have one name.
            text = cells[name].fillna("-").astype(str)
            is_alike = text.groupby(first).transform("nunique") <= 1
            if name not in COLUMNS + WIDER:
                text = f"{name}=" + text
            out = out.where(is_alike, out + " " + text)
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
    is_compared = (cells.number > 0) & cells.line.isin([*base])
    verdicts = [compute_verdict(base[cell.line], cell) for cell in cells[is_compared].itertuples()]
    table = pd.DataFrame(verdicts, cells.index[is_compared], Verdict._fields).reindex(cells.index)
    cells["test"], cells["p"], cells["compared"] = table.test, table.p.astype(float), is_compared
    cells["p_adjusted"] = statistics.holm(cells.p)


def compute_verdict(first: Any, second: Any) -> Verdict:
    """Test the difference of two results of one line."""
    if max(first.seeds, second.seeds) > 1:
        if first.n_censored or second.n_censored:
            return NONE
        ours, theirs = ({seed: row.score for seed, row in cell.by_seed.items()} for cell in (first, second))
        return statistics.compare_over_seeds(ours, theirs, (first.floor + second.floor) / 2)
    # When a length stopped early, its number of tests depends on their outcomes, which no test here allows for.
    is_early = first.record.get("stops") or second.record.get("stops")
    if is_early or pd.isna(first.passed) or pd.isna(second.passed):
        return NONE
    return statistics.compare_shares((first.passed, second.passed), (first.n, second.n))


def list_growth(cells: pd.DataFrame) -> Iterator[Row]:
    """Compare ln reach of each column with that of the column before, over the seeds that both have."""
    reaches = cells[cells.metric.str.startswith("reach") & (cells.seeds > 1)].sort_values(["line", "number"])
    for first, second in itertools.pairwise(reaches.itertuples()):
        if first.line != second.line:
            continue
        differences = []
        for seed in first.by_seed.keys() & second.by_seed.keys():
            difference = least_growth(first.by_seed[seed], second.by_seed[seed])
            if difference is not None:
                differences.append(difference)
        if len(differences) > 1:
            mean, low, high = statistics.mean_with_limits(differences)
            row = {name: getattr(second, name) for name in ("number", "column", "model", "column_seeds")}
            row |= {"line": GROWTH + second.line.removeprefix(second.metric), "metric": GROWTH, "unit": "ln"}
            row |= {"seeds": len(differences), "score": mean, "low": low, "high": high}
            yield row | {"compared": False, "n_censored": 0, "dips": 0}


def least_growth(first: Any, second: Any) -> float | None:
    """Return the least difference of ln reach, second less first, that the tests of a seed allow; None if it has none.

    A reach at the end of what was tested is that distance at least, and the window at most.
    """
    ends: list[float] = []
    for row in (first, second):
        ends += bound_reach(row.score, row.high, row.last, row.settings.get("data.window") or math.inf)
    low, high, other_low, other_high = ends
    least, most = other_low - high, other_high - low
    if least <= 0 <= most and least < most:
        return 0.0 if math.isfinite(least) and math.isfinite(most) else None
    nearest = least if least > 0 or least == most else most
    return nearest if math.isfinite(nearest) else None


def format_table(cells: pd.DataFrame, notes: Sequence[str], *, full: bool) -> str:
    """Write the table and its notes; without `full` in at most 25 lines, of evenly spaced distances."""
    order = list(dict.fromkeys(cells.line))
    fixed = cells[cells["rank"] < 2].line.nunique()
    distances = list(dict.fromkeys(cells.line[cells["rank"] == 2]))
    rest = order[fixed:] if full or not distances else distances
    for n in range(len(rest), -1, -1):
        kept = [*order[:fixed], *[rest[index] for index in np.linspace(0, len(rest) - 1, n).round().astype(int)]]
        shown = cells[cells.line.isin(kept)]
        below = [*describe_marks(shown, full=full), *notes]
        if len(kept) < len(order):
            below.append(f"{len(order) - len(kept)} lines are omitted; --full shows them.")
        lines = [*fitted(to_table(shown, full=full)).split("\n"), ""]
        for note in [*(below if full else [" ".join(below)]), *define_names(cells.column.unique())]:
            lines += wrap(note, WIDEST)
        if full or len(lines) <= 25 or fixed + n <= 1:
            break
    return "\n".join(lines)


def to_table(cells: pd.DataFrame, *, full: bool = True) -> pd.DataFrame:
    """Spread the cells as text; - is no result."""
    texts = cells.assign(text=[write_cell(cell, full=full) for cell in cells.itertuples()])
    table = pivot(texts, "line", "column", "text").fillna("-").rename_axis(index=None, columns=None)
    return table[cells.sort_values("number").column.unique()]


def format_heading(value: object) -> str:
    """Write a value of a heading."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if isinstance(value, int | float) and value % 1 == 0 else str(value)


def write_cell(cell: Any, *, full: bool = True) -> str:
    """Write a score with its limits, shares in percent: 50.0 (25.0 to 75.0), n=8; * is significant, ? not tested."""
    low, high = (write_number(limit, cell.unit) for limit in (cell.low, cell.high))
    text = cell.range if isinstance(cell.range, str) else write_number(cell.score, cell.unit)
    if isinstance(cell.agreement, str):
        text = "all" if cell.score else "none"
    elif low and high and pd.notna(cell.score):
        text += f" ({low} to {high})"
    elif low and cell.unit == "tokens" and pd.notna(cell.score):
        text += f" ({low} or more)"
    if cell.seeds != cell.column_seeds:
        text += f", {cell.seeds} seeds"
    elif cell.seeds == 1 and pd.notna(cell.n):
        text += f", n={cell.n:,.0f}"
    if cell.dips and (full or cell.seeds == 1):  # distances nearer than reach that fail
        text += f", {cell.dips} dips" if cell.seeds > 1 else ", a dip"
    # nan, of a result without a test, is not <= LEVEL.
    if cell.p_adjusted <= LEVEL:
        return f"{text}*"
    return f"{text}?" if cell.compared and not isinstance(cell.test, str) else text


def write_number(value: float, unit: str) -> str:
    """Write a score or a limit of a unit, without the .0 of tokens; nothing if it is not known."""
    if pd.isna(value):
        return ""
    if unit == "share":
        value = 100 * value
    forms = {"share": ".1f", "percent": ".1f", "tokens": ",.1f", "pairs": ",.0f", "ln": ".3f"}
    text = f"{value:{forms.get(unit, '.4g')}}"
    if unit == "ln":
        return text.replace("0.", ".", 1) if abs(value) < 1 else text
    return text.removesuffix(".0") if unit == "tokens" else text


def describe_marks(cells: pd.DataFrame, *, full: bool) -> list[str]:
    """Explain the marks and the tests."""
    untested = (cells.compared & cells.test.isna()).sum()
    notes = ["Shares in percent."]
    if (cells.seeds > 1).any():
        notes.append("Means over seeds with 95% limits; of censored seeds the least and the most: < below, + beyond.")
    if (cells.metric == GROWTH).any():
        notes.append("Growth is the mean difference of the seeds from the column before.")
    if full and (cells.dips > 0).any():
        notes.append("k dips: k runs fail at a distance nearer than reach.")
    for text in cells.agreement.dropna().unique():
        notes.append(f"{'all' if ' all ' in text else 'none'}: {text}.")
    if cells.test.notna().any():
        named = ", ".join([f"{name} ({count})" for name, count in cells.test.value_counts().items()])
        first = cells.column[cells.number == 0].iloc[0]
        notes.append(f"* differs from {first} at {LEVEL:g}, p adjusted by Holm: {named}.")
    if untested:
        notes.append(f"? no test ({untested}): fewer than {FEWEST} seeds, censored, or no shares of tests.")
    return notes


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
