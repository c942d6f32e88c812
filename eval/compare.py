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
Differences to the first column are tested. Outcomes of the same tests take McNemar's exact test, or the paired t test
where they are not 0 or 1. Other shares take Fisher's exact test, means over four seeds and more the paired t test or
Welch's. Holm's method adjusts all p of a table together. A second line of reach has its growth from column to column:
the mean difference of ln reach of the same seeds. Where a reach is only bounded, the least difference counts.

Prints the table; -o writes its results to compare.jsonl.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run
from eval.engine.text import WIDEST, Result, fitted, natural_key
from lab.analysis.conditions import define_names, find_differences, own_settings, shorten_names
from lab.analysis.table import Table, list_results, read_table, unpacked
from lab.core.chart_style import CENSORED, range_of
from lab.core.command import show, start
from lab.core.errors import ConfigError, DataError, suggest
from lab.core.schema import Section
from lab.core.types import CONFIDENCE, Row
from lab.probe.limits import share_limits
from lab.results import statistics
from lab.results.statistics import FEWEST, LEVEL, NONE, Verdict
from lab.results.store import read_records

LINES = 25  # of the text without --full
COLUMNS = ["model", "checkpoint", "method"]  # what a column is, unless --by names it
WIDER = ["precision", "weights"]  # and where two results of one line would else be in one cell
LINE = ["metric", "unit", "distance", "length"]
KNOWN = ["measure", "metric", "distance", "length", *COLUMNS, *WIDER]  # fields of a result's row, with those of --by
RANGES = {"share": (0, 1), "percent": (0, 100), "tokens": (0, np.inf), "pairs": (0, np.inf)}  # of units
FORMS = {"share": ".1f", "percent": ".1f", "tokens": ",.1f", "pairs": ",.0f", "ln": ".3f"}  # of units; of others .4g
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
        table = read_table(places, options.replicate)
        for place in places:
            if is_empty(place, table):
                fix = "give a run folder, a folder of results, or a .jsonl file of rows"
                raise DataError(f"{place}: no results of an evaluation; {fix}")
        # A table without a word about skipped rows would look complete.
        if table.skipped:
            show(f"skipped rows of {', '.join(table.skipped)}, which are joined with no others", error=True)
        cells, notes = arrange(table, options.by, full=options.full)
    fields = ["protocol", "n", "seeds", "score", "low", "high", "first", "range", "unit", "test", "p", "p_adjusted"]
    fields = [*dict.fromkeys([*KNOWN, *options.by]), *fields, "p_exact", "seeds_needed"]
    rows = []
    known = cells.drop(columns="protocol", errors="ignore").rename(columns={"alike": "protocol"})
    for record in known.reindex(columns=fields).to_dict("records"):
        rows.append({name: value for name, value in record.items() if is_known(value)})
    return request.save("compare", format_table(cells, notes, full=options.full), rows)


def is_empty(place: Path, table: Table) -> bool:
    return (place / "config.yaml").is_file() and str(place.resolve()) not in set(table.rows.run)


def is_known(value: Any) -> bool:
    return isinstance(value, dict | list) or (pd.notna(value) and value != "")


def arrange(table: Table, by: Sequence[str] = (), *, full: bool = True) -> tuple[pd.DataFrame, list[str]]:
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
    results = frame
    if "checkpoint" not in by:
        newest = frame.checkpoint.groupby([frame.measure, frame.model, frame.method]).transform("max")
        results = frame[frame.checkpoint == newest]
        if len(results) < len(frame):
            omitted = f"{len(frame) - len(results):,} results of older checkpoints are omitted"
            notes.append(f"{omitted}; --by=checkpoint shows them.")
    results = results.copy()
    lines, columns = choose_keys(results, list(dict.fromkeys(by)), is_setting)
    # The sort is stable: of equal numbers of tests, the later result comes last and is kept.
    rising = results.sort_values("n", kind="stable", na_position="first")
    once = rising.drop_duplicates([*lines, *columns, "seed_of_run"], keep="last").sort_index()
    groups = once.groupby([*lines, *columns], sort=False, dropna=False)
    cells = pd.DataFrame([mean_over_seeds(rows) for _, rows in groups])
    cells["line"] = name_lines(cells, lines)
    add_headings(cells, columns)
    cells = add_p_values(cells)
    cells = pd.concat([cells, pd.DataFrame(list_growth(cells))], ignore_index=True)
    # Reach is the answer and comes first, then accuracy by distance; f, lengths and other measures follow.
    cells["rank"] = np.select(
        [cells.line == GROWTH, cells.metric.str.startswith("reach"), cells.distance.notna() & (cells.unit == "share")],
        [1, 0, 2],
        3,
    )
    order = ["rank", "distance", "metric", "length", "line", "number"]
    return cells.sort_values(order, ignore_index=True, kind="stable"), notes


def add_conditions(table: Table) -> pd.DataFrame:
    """Name models by their conditions, whose checkpoints get common names, and add the settings that differ."""
    frame = table.rows.copy()
    for name in ("model", "precision", "weights"):
        frame[name] = [line.get(name) for line in frame.record]
    has_run = frame.run != ""
    frame["settings"] = frame.run.map(lambda run: table.settings.get(run, {}))
    own = own_settings(table.settings)
    for name in find_differences(own):
        frame[name] = frame.run.map(lambda run, name=name: str(own.get(run, {}).get(name)))
    frame["own_model"] = frame.model
    condition = frame.condition.where(has_run, frame.model)
    names = {run: condition.name for run, condition in table.conditions.items() if not condition.is_base}
    short, _ = shorten_names(names)
    # A condition of one run has the run's name.
    named = frame.run.map(short).fillna(condition)
    frame["model"] = frame.model.where(frame.groupby(condition).run.transform("nunique") <= 1, named)
    frame["seed_of_run"] = frame.replicate.astype(str)
    frame["weights"] = frame.weights.mask(has_run)  # follow from run and checkpoint
    # Seeds end some tokens apart, so that their checkpoints are matched by number and named as the first one's.
    checkpoints = frame.checkpoint.fillna("").astype(str)
    number = checkpoints.groupby([condition, frame.run, frame.measure]).rank("dense")
    frame["checkpoint"] = checkpoints.groupby([condition, frame.measure, number]).transform("first")
    return frame


def select_usual(frame: pd.DataFrame, by: Sequence[str], table: Table) -> tuple[pd.DataFrame, list[str]]:
    """Select results of runs under the methods that they trained with, without bases; note what is left out."""
    notes = []
    bases = sorted({base for base, condition in table.conditions.items() if condition.is_base})
    is_base = frame.is_base.fillna(value=False).astype(bool)
    if bases and not is_base.all():
        frame = frame[~is_base].copy()
    tokens = [table.settings[base].get("train.tokens") for base in bases]
    if bases:
        listed = ", ".join(f"{n:,}" for n in sorted({int(n) for n in tokens if n is not None}))
        notes.append(f"{len(bases)} runs that others start from, of {listed} tokens, are not in the table.")
    if "method" not in by:
        trained = frame[[file.name == "probes.jsonl" for file in frame.file]].groupby("run").method.first()
        usual = frame.run.map(trained).astype(object).fillna(frame.method)
        others = frame[frame.method != usual].method.nunique()
        if others:
            frame = frame[frame.method == usual].copy()
            notes.append(f"{others} other position methods are not in the table; --full or --by=method shows them.")
    return frame, notes


def add_field(frame: pd.DataFrame, name: str) -> bool:
    """Add a column that --by names, and return whether it is a setting, which may be named by its last part."""
    if name in KNOWN or name in LINE:
        return False
    columns: dict[str, None] = {}
    settings: dict[str, None] = {}
    for line, config in zip(frame.record, frame.settings, strict=True):
        columns |= dict.fromkeys(line)
        settings |= dict.fromkeys(config)
    ends = [setting for setting in settings if f".{setting}".endswith(f".{name}")]
    if name in columns:
        values = [line.get(name) for line in frame.record]
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

    Where some condition has several seeds, the seed of the tests, which may be the run's, is no criterion; where
    columns are settings of runs, or a condition has texts of several seeds, neither are the texts of the runs' corpora.
    """

    def varying(keys: list[str], names: Sequence[str]) -> list[str]:
        groups = frame.groupby(keys, dropna=False)
        return [name for name in names if groups[name].nunique(dropna=False).max() > 1]

    condition = frame.condition.where(frame.run != "", frame.model)
    of_run = []
    if is_setting or frame.groupby(condition).seed_of_run.nunique().max() > 1:
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
    """Average the results of one cell, one for each seed; return a range if one of them is censored."""
    # A result below the first value tested has no score: the range shows that value with a mark.
    values = rows.score.astype(float).fillna(rows["first"].astype(float))
    censored = int(rows.censored.count())
    # Where the limits go beyond the first value, the model may retrieve there, and no number is determined.
    is_open = rows.metric.str.startswith("reach") & (rows.censored == "below") & (rows.high != rows["first"])
    counts = {"seeds": len(rows), "n_censored": censored, "dips": int(rows.dips.sum())}
    by_seed = {row.seed_of_run: row for row in rows.itertuples()}
    cell: Row = rows.iloc[-1].to_dict() | counts | {"by_seed": by_seed, "alike_of_seeds": "", "floor": 0.0}
    parts = []
    if censored and not is_open.all():
        parts.append(range_of(values[~is_open], rows.censored[~is_open].map(CENSORED)))
    if is_open.any():
        parts.append(describe_open(rows[is_open], len(rows)))
    cell["range"] = ", ".join(parts)
    if len(rows) == 1:
        return cell
    if censored:
        return cell | dict.fromkeys(("score", "low", "high"), np.nan)
    unit = rows.unit.iloc[0]
    is_share = unit == "share"
    mean, low, high = statistics.mean_with_limits(values.tolist(), ends=statistics.SHARES if is_share else None)
    low, high = np.clip([low, high], *RANGES.get(unit, (-np.inf, np.inf))).tolist()
    if is_share and rows.passed.notna().all():  # of independent tests
        # The spread of the seeds may be 0 by chance, but not below that of the tests.
        variances = [statistics.binomial_variance(row.score, row.n) for row in rows.itertuples()]
        cell["floor"] = float(np.mean(variances))
        if set(values) <= {0.0, 1.0} and values.nunique() == 1:
            # Limits over seeds that all agree would say more than their tests do.
            n = int(rows.n.min())
            ends = share_limits(n if mean else 0, n, CONFIDENCE)
            limits = " to ".join(f"{100 * end:.3g}" for end in ends)
            what = "all" if mean else "none"
            cell["alike_of_seeds"] = f"{len(rows)} of {len(rows)} seeds found {what} (each {limits})"
    return cell | {"score": mean, "low": low, "high": high}


def describe_open(rows: pd.DataFrame, n: int) -> str:
    """Say that the reach of seeds is not determined; of one run, with the best distance."""
    best = rows.record.iloc[-1].get("best_distance")
    if n > 1 or best is None:
        return f"{len(rows)} not determined" if n > 1 else "not determined"
    return f"not determined, best at {best:,}"


def name_lines(cells: pd.DataFrame, lines: Sequence[str]) -> pd.Series[str]:
    """Name lines by metric, distance or length, and by the fields that distinguish lines of the same name."""
    out = cells.metric if "metric" in lines else pd.Series("", index=cells.index)
    for name in ("distance", "length"):
        if name in lines:
            at = cells[name].map(lambda n: "" if pd.isna(n) or not n else f" at {n:,.0f}")
            out = out + at
    first = out = out.str.strip()
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
    heading = cells[shown].map(format_heading).agg(", ".join, axis="columns")
    cells["column_seeds"] = cells.groupby("number").seeds.transform("max")
    n = cells.column_seeds.map(lambda n: f", n = {n}" if n > 1 else "")
    cells["column"] = heading + n


def add_p_values(cells: pd.DataFrame) -> pd.DataFrame:
    """Test every result against the first column of its line. Add the test, p, and p adjusted over the table."""
    records: list[Any] = list(cells.itertuples())
    # A line without a result in the first column has nothing to be compared with.
    base = {record.line: record for record in records if record.number == 0}
    verdicts = {}
    for record in records:
        if record.number and record.line in base:
            verdicts[record.Index] = compare(base[record.line], record)
    table = pd.DataFrame.from_dict(verdicts, "index", columns=Verdict._fields).reindex(cells.index)
    table = table.astype(dict.fromkeys(Verdict._fields[1:], float))
    table["p_adjusted"] = statistics.holm(table["p"])
    table["seeds_needed"] = table["seeds_needed"].where(table["p_adjusted"] > LEVEL)  # where nothing is shown
    table["compared"] = cells.index.isin([*verdicts])
    cells[table.columns] = table
    return cells


def compare(first: Any, second: Any) -> Verdict:
    """Test the difference of two results of one line."""
    if max(first.seeds, second.seeds) > 1:
        if first.n_censored or second.n_censored:
            return NONE
        ours, theirs = ({seed: row.score for seed, row in cell.by_seed.items()} for cell in (first, second))
        return statistics.compare_over_seeds(ours, theirs, (first.floor + second.floor) / 2)
    # When a length stopped early, its number of tests depends on their outcomes, which no test here allows for.
    if first.record.get("stops") or second.record.get("stops"):
        return NONE
    outcomes, others = read_outcomes(first), read_outcomes(second)
    if outcomes and others and set(outcomes) == set(others):
        verdict = statistics.compare_tests(outcomes, others)
        if verdict.test is not None:
            return verdict
    if pd.isna(first.passed) or pd.isna(second.passed):
        return NONE
    return statistics.compare_shares((first.passed, second.passed), (first.n, second.n))


def read_outcomes(result: Any) -> dict[Any, float]:
    """Return the score of each test by its number and prompt; an empty dict unless all n tests are recorded."""
    line = result.record
    cell = line.get("cell")
    scores: dict[Any, float] = {}
    for test in list_tests(result):
        known = test.get("cell") == cell and test.get("length", line.get("length")) == line.get("length")
        if known and (cell is None or "found" not in test or test["test"] < result.n):
            score = read_score(test, line)
            if score is not None:
                scores[test["test"], test.get("prompt_hash")] = score
    # A file may hold fewer tests than the row, as after a deletion, or scores of another version.
    is_whole = len(scores) == result.n and (pd.isna(result.passed) or sum(scores.values()) == result.passed)
    return scores if is_whole else {}


def list_tests(result: Any) -> Sequence[Row]:
    """List the tests of a row: those in its file, in the file that it names, or the cases of a probe of training."""
    file = result.file
    if result.record.get("cases"):
        file = file.parent / str(result.record["cases"])
    elif file.name == "probes.jsonl":
        file = file.parent / f"cases/tokens-{result.tokens or 0:015d}.jsonl"
    return read_tests(file, file.stat().st_mtime_ns) if file.is_file() else ()


@lru_cache(maxsize=8)
def read_tests(path: Path, changed: int) -> Sequence[Row]:
    """Read the tests of a file; `changed` distinguishes one state of the file from another."""
    return [record for record in read_records(path) if "test" in record]


def read_score(test: Mapping[str, Any], line: Mapping[str, Any]) -> float | None:
    """Read the score of a test; that of a text is its loss per token."""
    # Measures record a score under names of their own; a text has a sum of losses.
    if "nll" in test:
        return float(test["nll"] / test["tokens"])
    if "found" in test:
        return float(test["found"] >= line.get("required", 1))
    value = test.get("passed", test.get("score"))
    if "scores" in test:
        value = test["scores"].get(line["metric"])
    if isinstance(value, list):  # a log-likelihood and its weight
        return float(-value[0] / value[1])
    return float(value) if isinstance(value, int | float) else None


def list_growth(cells: pd.DataFrame) -> list[Row]:
    """Compare ln reach of each column with that of the column before, over the seeds that both have."""
    reaches = [cell for cell in cells.itertuples() if cell.metric.startswith("reach") and cell.seeds > 1]
    reaches.sort(key=lambda cell: (cell.line, cell.number))
    rows = []
    for first, second in itertools.pairwise(reaches):
        if first.line != second.line:
            continue
        differences = []
        for seed in first.by_seed.keys() & second.by_seed.keys():
            difference = least_growth(first.by_seed[seed], second.by_seed[seed])
            if difference is not None:
                differences.append(difference)
        if len(differences) > 1:
            mean, low, high = statistics.mean_with_limits(differences)
            about = {"line": GROWTH, "metric": GROWTH, "unit": "ln", "number": second.number, "column": second.column}
            about |= {"model": second.model, "column_seeds": second.column_seeds, "seeds": len(differences)}
            about |= {"score": mean, "low": low, "high": high}
            rows.append({**about, "compared": False, "n_censored": 0, "dips": 0})
    return rows


def least_growth(first: Any, second: Any) -> float | None:
    """Return the least difference of ln reach, second less first, that the tests of a seed allow; None if it has none.

    A reach at the end of what was tested is that distance at least, and the window at most.
    """
    (low, high), (other_low, other_high) = map(bound_reach, (first, second))
    least, most = other_low - high, other_high - low
    if least <= 0 <= most and least < most:
        return 0.0 if math.isfinite(least) and math.isfinite(most) else None
    nearest = least if least > 0 or least == most else most
    return nearest if math.isfinite(nearest) else None


def bound_reach(row: Any) -> tuple[float, float]:
    """Return between which values the log of a reach is."""
    if row.censored == "below":
        high = row.high if pd.notna(row.high) else math.inf
        return -math.inf, float(np.log(high))
    log = float(np.log(row.score))
    if row.censored != "end":
        return log, log
    window = row.settings.get("data.window")
    return log, math.inf if window is None else max(log, float(np.log(window)))


def format_table(cells: pd.DataFrame, notes: Sequence[str], *, full: bool) -> str:
    """Write the table and its notes; without `full` in at most LINES lines, of evenly spaced distances."""
    named = define_names(cells.column.unique())
    order = list(dict.fromkeys(cells.line))
    n_first = int(cells[cells["rank"] < 2].line.nunique())
    rest = order[n_first:]
    if not full and (cells["rank"] == 2).any():
        rest = [line for line in rest if line in set(cells.line[cells["rank"] == 2])]
    for n in range(n_first + len(rest), 0, -1):
        kept = [*order[:n_first], *thin(rest, max(n - n_first, 0))]
        omitted = len(order) - len(kept)
        shown = cells[cells.line.isin(kept)]
        below = [*describe_marks(shown, full=full), *notes]
        lines = [*fitted(to_table(shown, full=full)).split("\n"), ""]
        more = [f"{omitted} lines are omitted; --full shows them."] if omitted else []
        for note in [" ".join([*below, *more]), *named] if not full else [*below, *named]:
            lines += wrap(note, WIDEST)
        if full or len(lines) <= LINES or n <= max(n_first, 1):
            break
    return "\n".join(lines)


def thin(lines: Sequence[str], n: int) -> list[str]:
    """Select n of some lines, evenly spaced, with the first and the last.

    Example:
        >>> thin("abcdefg", 4), thin("ab", 3), thin("ab", 0)
        (['a', 'c', 'e', 'g'], ['a', 'b'], [])
    """
    if n >= len(lines):
        return list(lines)
    return [lines[index] for index in np.linspace(0, len(lines) - 1, n).round().astype(int)]


def to_table(cells: pd.DataFrame, *, full: bool = True) -> pd.DataFrame:
    """Spread the cells as text; - is no result."""
    texts = cells.assign(text=[format_cell(cell, full=full) for cell in cells.itertuples()])
    table = texts.pivot(index="line", columns="column", values="text").loc[cells.line.unique()]
    return table[cells.sort_values("number").column.unique()].fillna("-").rename_axis(index=None, columns=None)


def format_heading(value: Any) -> str:
    """Write a value of a heading."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if isinstance(value, int | float) and value == value // 1 else str(value)


def format_cell(cell: Any, *, full: bool = True) -> str:
    """Write a score with its limits, shares in percent: 50.0 (25.0 to 75.0), n=8; * is significant, ? not tested."""
    low, high = (format_number(limit, cell.unit) for limit in (cell.low, cell.high))
    text = cell.range if isinstance(cell.range, str) and cell.range else str(format_number(cell.score, cell.unit))
    if isinstance(cell.alike_of_seeds, str) and cell.alike_of_seeds:
        text = "all" if cell.score else "none"
    elif low and pd.notna(cell.score):
        if high:
            text += f" ({low} to {high})"
        elif cell.unit == "tokens":
            text += f" ({low} or more)"
    if cell.seeds != cell.column_seeds:
        text += f", {cell.seeds} seeds"
    elif cell.seeds == 1 and pd.notna(cell.n):
        text += f", n={cell.n:,.0f}"
    if cell.dips and (full or cell.seeds == 1):  # distances nearer than reach that fail
        text += f", {cell.dips} dips" if cell.seeds > 1 else ", a dip"
    # nan, of a result without a test, is not <= LEVEL.
    if cell.p_adjusted <= LEVEL:
        text += "*"
    elif cell.compared and not isinstance(cell.test, str):
        text += "?"
    return text


def format_number(value: Any, unit: str) -> str | None:
    """Write a score or a limit of a unit, without the .0 of tokens; None if it is not known."""
    if pd.isna(value):
        return None
    if unit == "share":
        value = 100 * value
    text = f"{value:{FORMS.get(unit, '.4g')}}"
    if unit == "ln":
        return re.sub(r"^(-?)0\.", r"\1.", text)
    return text.removesuffix(".0") if unit == "tokens" else text


def describe_marks(cells: pd.DataFrame, *, full: bool) -> list[str]:
    """Explain the marks and the tests."""
    tests = cells.test.value_counts()
    untested = int((cells.compared.astype(bool) & cells.test.isna()).sum())
    notes = ["Shares in percent."]
    if (cells.seeds > 1).any():
        notes.append("Means over seeds with 95% limits; of censored seeds the least and the most: < below, + beyond.")
    if (cells.line == GROWTH).any():
        notes.append("Growth is the mean difference of the seeds from the column before.")
    if full and (cells.dips > 0).any():
        notes.append("k dips: k runs fail at a distance nearer than reach.")
    for text in dict.fromkeys(cells.alike_of_seeds.dropna()):
        if text:
            notes.append(f"{'all' if ' all ' in text else 'none'}: {text}.")
    if len(tests):
        named = ", ".join([f"{name} ({count})" for name, count in tests.items()])
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
main = partial(run, SPEC, join)


if __name__ == "__main__":
    start(main)
