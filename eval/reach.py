"""Explain reach by position frequency, demand, tokens, window and rotary base in one regression with limits.

    probe-lab reach RUN [RUN ...] [--option=value ...] [-o FOLDER]

    probe-lab reach runs/mini-*
    probe-lab reach runs/mini-* --last --at=96 -o results

Every probe of every run is a point, or with --last each run's last one. A run without probes of its own is a point if
probe-lab distance has measured it. Probes that find half of the numbers at no distance are omitted, as the run has not
acquired retrieval. So are runs that others start from.

The log of reach is a linear function of six logs. They are those of f at one distance, the demand from there on,
tokens, window, rotary base, and the question's longest distance in the synthetic corpus (section). Demand is summed,
since few targets or none ask for one distance. One is added to it, so that a run without any has a log. A reach at the
end of what was tested counts as that distance or more. No reach counts as less than the first distance
(eval/engine/regression.py). Limits are at 95%, by the jackknife over bases. A column is named and omitted if it does
not differ, is constant in the runs of each base, is collinear with others, or is not in all records. A coefficient
whose limits exclude 0 is one that moves reach, as far as these runs can say.

Prints the tables; -o writes their rows and the points to reach.jsonl.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run_evaluation
from eval.engine.regression import SPARE, Regression, fit, is_measured, jackknife, select_separable
from eval.engine.text import WIDEST, Result, to_text
from lab.analysis.conditions import condition_settings, define_names, find_differences, label_conditions
from lab.analysis.table import (
    ResultTable,
    bound_reach,
    check_runs,
    is_run,
    measure_reach,
    read_counts,
    read_probes,
    read_result_table,
    unpacked,
)
from lab.core.command import start
from lab.core.errors import DataError
from lab.core.schema import Positive, Section
from lab.core.types import CONFIDENCE, Row
from lab.counts import f_at
from lab.runs.checkpoints import CONSUMED

DEMAND = "demand+1"
COLUMNS = ("f", DEMAND, "tokens", "window", "theta", "section")  # of two that are collinear, the first is kept


class ReachOptions(Section):
    """Options of this command."""

    at: Positive | None = None
    """Distance in tokens at which f is read; default: half of the smallest window."""
    last: bool = False
    """Read each run's last probe only."""
    replicate: tuple[str, ...] = ()
    """Settings, with commas between them, whose values are replicates, as seeds are: start.path."""


def explain_reach(request: Request) -> Result:
    """Fit the regression; the rows are those of all tables, and the points."""
    options: ReachOptions = request.options
    with unpacked(request.positional) as places:
        check_runs(places)
        table = read_result_table(places, options.replicate)
        windows = [int(table.settings[run]["data.window"]) for run in list_branches(table)]
        distance = options.at or min(windows) // 2
        every = read_points(table, distance, last_only=options.last)
    acquired = every[every["acquired"]]
    is_bounded = np.isfinite(acquired["low"]) | np.isfinite(acquired["high"])
    points = acquired[(acquired["f"] > 0) & is_bounded].reset_index(drop=True)
    if points.empty:
        raise DataError(f"RUNS: no probe has reach and f at {distance} tokens; name runs that probed and counted")
    # Conditions are named by what differs between the runs that give points: other runs leave no trace.
    names = {run: table.conditions[run] for run in points["path"].unique()}
    points["condition"] = points.pop("path").map(label_conditions(names))
    columns, errors = select_separable(points, COLUMNS)
    model = fit(points, columns)
    tables = {"points": points.set_index("run"), "conditions": tabulate_reach(points)}
    conditions = tables["conditions"]
    exact, ends = is_measured(points).sum(), np.isposinf(points["high"]).sum()
    differing = find_differences(condition_settings({run: table.settings[run] for run in names}, table.replicate))
    n = len(points)
    text = f"""n = {n} probes of {points["run"].nunique()} runs in {len(conditions)} conditions; \
reach measured in {exact}, the end of what was tested in {ends}, none in {n - exact - ends}
skipped {len(every) - len(acquired)} without retrieval, {len(acquired) - n} without f at {distance} tokens or \
a limit of reach
conditions differ in: {", ".join(differing) or "nothing"}

"""
    if model is None:
        rule = f"a regression on {', '.join(columns) or 'nothing'} takes at least {len(columns) + SPARE}"
        text += f"no regression: reach was measured in {exact} probes, and {rule}"
    else:
        tables["coefficients"], n_bases = jackknife(points, model)
        text += regression_text(tables["coefficients"], model, n_bases, errors)
    shown = to_text(conditions.dropna(axis="columns", how="all"), {"reach": ",.1f", "f at reach": ",.0f"})
    text += f"\n\nlast probes, geometric means:\n{shown}\n"
    text += "\n".join(define_names(conditions.index))
    rows = []
    for name, each in tables.items():
        rows += [{"table": name, **row} for row in each.reset_index().to_dict("records")]
    return request.save("reach", "\n".join(fill(line, WIDEST) for line in text.rstrip().split("\n")), rows)


def list_branches(table: ResultTable) -> list[str]:
    """List the runs that no other starts from, or all if there are only such."""
    return [run for run, condition in table.conditions.items() if not condition.is_base] or [*table.conditions]


def read_points(table: ResultTable, distance: int, *, last_only: bool = False) -> pd.DataFrame:
    """Make a row for each probe of reach, or each run's last, with f and demand at the distance, nan where unknown.

    `low` and `high` are the bounds of the log of reach: one value where it was measured, the last distance and infinity
    where it is the end, minus infinity and the first distance where it is none.
    """
    rows: list[Row] = []
    for path in list_branches(table):
        run, settings = Path(path), table.settings[path]
        names: Row = {"path": path, "run": run.name, "base": Path(table.conditions[path].base).name}
        names |= {"window": settings.get("data.window"), "theta": settings.get("model.theta")}
        names |= {"section": settings.get("data.corpus.section_tokens")}
        # Counts are saved at every probe, so that f and demand are those at its time.
        for record in list_reaches(table, path)[-1 if last_only else 0 :]:
            counts = read_counts(run, record["tokens"])
            high = record.get("reach_high", record["first_distance"])
            low, high = bound_reach(record["reach"], high, record["last_distance"])
            demand = counts and counts.g_from(distance)
            rows.append({**record, "f": f_at(counts, distance), DEMAND: demand, "low": low, "high": high, **names})
    numbers = (*COLUMNS, "low", "high", "reach", "reach_low", "reach_high", "f_at_reach")
    points = pd.DataFrame(rows, columns=["path", "run", "base", "acquired", *numbers])
    points = points.astype(dict.fromkeys(numbers, float) | {"acquired": bool})
    points[DEMAND] += 1
    return points


def list_reaches(table: ResultTable, path: str) -> list[Row]:
    """List the reach that training probed, by rising tokens, or the one that eval.distance has measured.

    A run has acquired retrieval if it finds half of the numbers at some distance.
    """
    rows = table.rows[(table.rows.run == path) & (table.rows.metric == "accuracy")]
    is_own = np.array([file.name == "probes.jsonl" for file in rows.file], dtype=bool)
    best = rows[is_own].groupby("tokens").score.max()
    probes = []
    for probe in read_probes(Path(path)):
        if probe.get("first_distance"):
            # A run may find numbers at distances nearer than any that counts as reach.
            tokens = probe[CONSUMED]
            probes.append({**probe, "tokens": tokens, "acquired": probe["reach"] or best.get(tokens, 0) >= 0.5})
    if probes:
        return probes
    measured = measure_reach(table, path)
    if measured is None:
        return []
    return [{**measured, "tokens": measured[CONSUMED], "acquired": measured["best"] >= 0.5}]


def regression_text(table: pd.DataFrame, model: Regression, n_bases: int, errors: Mapping[str, str]) -> str:
    """Write the regression with its limits, and the columns that are not in it."""
    lines = [f"ln reach = {model.intercept:.2f} + sum of coefficient * ln column; residuals of {model.sigma:.2f} nats"]
    if len(table):
        lines.append(to_text(table, "+.2f"))
    lines.append(f"{CONFIDENCE:g} limits by the jackknife over {n_bases} bases, or runs without one")
    if np.isinf(table.to_numpy()).any():
        lines.append("inf: open, where reach was only bounded, or one base alone tells")
    lines += [f"not in the regression, {error}: {column}" for column, error in errors.items()]
    return "\n".join(lines)


def tabulate_reach(points: pd.DataFrame) -> pd.DataFrame:
    """Tabulate reach, and f there, of each condition's last probes: geometric means of the runs that measured it."""
    last = points.groupby("run", sort=False).tail(1)
    exact = is_measured(last)
    # f at the end of what was tested is an upper bound of the f that a reach takes, and no part of the means.
    f = last["f_at_reach"].where(exact & (last["f_at_reach"] > 0))
    logs = {"reach": np.log(last["reach"].where(exact)), "f at reach": np.log(f)}
    counts = {"runs": 1, "none": np.isneginf(last["low"]), "measured": exact, "the end": np.isposinf(last["high"])}
    groups = last[["condition"]].assign(**counts, **logs).groupby("condition", sort=False)
    return groups[[*counts]].sum().join(np.exp(groups[[*logs]].mean()))


SPEC = EvaluationSpec(
    name="reach",
    description=__doc__,
    options=ReachOptions,
    excluded=OF_RUNS,
    each=False,
    takes=is_run,
    missing="RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo",
)
main = partial(run_evaluation, SPEC, explain_reach)


if __name__ == "__main__":
    start(main)
