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
not differ, is constant in the runs of each base, follows from others, or is not in all records. Models of each column
alone, of tokens and window, of none, and of all are compared by the log likelihood of bases, and of arms, that were
held out of the fit.

The last lines are the answer. A column has moved reach if its limits exclude 0 and it alone predicts held-out arms
better than no column. It has not if its limits, over its whole range, are within 0.1 of 0 and it predicts them no
better. Every other column is open, also one that depends on the constant that is added to demand, or that has fewer
than four bases.

Prints the tables; -o writes their rows and the points to reach.jsonl.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run
from eval.engine.reach_points import COLUMNS, DEMAND, collect_settings, read_points
from eval.engine.records import is_run, read_runs
from eval.engine.regression import (
    CONSTANT,
    HELD,
    SPARE,
    Regression,
    compare,
    fit,
    is_measured,
    jackknife,
    select_separable,
)
from eval.engine.rows import WIDEST, Result, to_text
from lab.core.chart_style import BELOW, BEYOND, RUN, range_of
from lab.core.command import start
from lab.core.errors import DataError
from lab.core.schema import Positive, Section
from lab.core.types import CONFIDENCE
from lab.runs.arms import FEWEST, find_bases, find_differences, name_arms, without_common
from lab.runs.conditions import define_names
from lab.runs.tables import unpacked

CONSTANTS = (1, 10, 100, 1_000, 10_000)  # added to demand, so that a run without any has a log; the table has the first
MARGIN = 0.1  # nats of ln reach over the whole range of a column, within which it has not moved reach
MOVED, STILL, OPEN = "moved reach", "did not", "open"
FORMS = {"reach": ",.1f", "log likelihood": ".2f"}
FORMS |= dict.fromkeys(("f at reach", "least f", "most f"), ",.0f")
FORMS |= dict.fromkeys(("coefficient", "low", "high", "all less it", "from", "to"), "+.2f")


@dataclass(frozen=True, kw_only=True)
class ReachOptions(Section):
    """Options of this command."""

    at: Positive | None = None
    """Distance in tokens at which f is read; default: half of the smallest window."""
    last: bool = False
    """Read each run's last probe only."""


def analyse(request: Request) -> Result:
    """Fit and compare; the rows are those of all tables, and the points."""
    options: ReachOptions = request.options
    with unpacked(request.positional) as places:
        runs = read_runs(places)
        settings = collect_settings(runs)
        distance = options.at or min(int(config["data.window"]) for config in settings.values()) // 2
        every = read_points(runs, distance, last_only=options.last)
    acquired = every[every["acquired"]]
    is_bounded = np.isfinite(acquired["low"]) | np.isfinite(acquired["high"])
    points = acquired[(acquired["f"] > 0) & is_bounded].reset_index(drop=True)
    if points.empty:
        raise DataError(f"RUNS: no probe has reach and f at {distance} tokens; name runs that probed and counted")
    bases = find_bases({name: run.settings for name, run in runs.items()})
    points["base"] = [bases.get(name, name) for name in points["run"]]
    # Arms are named by what differs between the runs that give points and their bases: other runs leave no trace.
    used = {*points["run"], *points["base"]}
    settings = collect_settings({name: run for name, run in runs.items() if name in used})
    arms, common = without_common(name_arms(settings))
    points["arm"] = points["run"].map(arms)
    columns, errors = select_separable(points, COLUMNS)
    model = fit(points, columns)
    exact = int(is_measured(points).sum())
    ends = np.isposinf(points["high"]).sum()
    outcomes = f"reach measured in {exact}, the end of what was tested in {ends}, none in {len(points) - exact - ends}"
    parts = [
        f"n = {len(points)} probes of {points['run'].nunique()} runs in {points['arm'].nunique()} arms; {outcomes}\n"
        f"skipped {len(every) - len(acquired)} without retrieval, {len(acquired) - len(points)} without f at "
        f"{distance} tokens or a limit of reach\n"
        f"arms differ in: {', '.join(find_differences(settings)) or 'nothing'}"
    ]
    tables = {"points": points.set_index("run"), "arms": tabulate_reach(points)}
    if model is None:
        rule = f"a regression on {', '.join(columns) or 'nothing'} takes at least {len(columns) + SPARE}"
        parts.append(f"no regression: reach was measured in {exact} probes, and {rule}")
    else:
        limits, n_bases = jackknife(points, model)
        tables["coefficients"] = limits
        parts.append(regression_text(limits, model, n_bases, errors))
        for by in ("base", "arm"):
            models = compare(points, list_models(columns), by)
            tables[f"models by {by}"] = models
            parts.append(to_text(models, FORMS))
    lines = ["last probes, geometric means:", to_text(tables["arms"].dropna(axis="columns", how="all"), FORMS)]
    if common:
        lines.append(f"in most arms: {common}")
    parts.append("\n".join([*lines, *define_names(tables["arms"].index)]))
    if model is not None:
        parts.append(answer(points, columns, errors))
    rows = []
    for name, table in tables.items():
        rows += [{"table": name, **row} for row in table.reset_index().to_dict("records")]
    wrapped = []
    for line in "\n\n".join(parts).split("\n"):
        wrapped.append(fill(line, WIDEST))
    return request.save("reach", "\n".join(wrapped), rows)


def list_models(columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """List the columns of the models that are compared."""
    models: dict[str, tuple[str, ...]] = {"none": ()}
    for column in columns:
        models[column] = (column,)
    if {"tokens", "window"} <= {*columns}:
        models["tokens, window"] = ("tokens", "window")
    return {**models, "all": columns}


def regression_text(table: pd.DataFrame, model: Regression, n_bases: int, errors: Mapping[str, str]) -> str:
    """Write the regression with its limits, and the columns that are not in it."""
    lines = [f"ln reach = {model.intercept:.2f} + sum of coefficient * ln column; residuals of {model.sigma:.2f} nats"]
    if len(table):
        lines.append(to_text(table, FORMS))
    lines.append(f"{CONFIDENCE:g} limits by the jackknife over {n_bases} bases, or runs without one")
    if np.isinf(table.to_numpy()).any():
        lines.append("inf: open, where reach was only bounded, or one base alone tells")
    by_error: dict[str, list[str]] = {}
    for column, error in errors.items():
        by_error.setdefault(error, []).append(column)
    for error, columns in by_error.items():
        lines.append(f"not in the regression, {error}: {', '.join(columns)}")
    return "\n".join(lines)


def answer(points: pd.DataFrame, columns: tuple[str, ...], errors: Mapping[str, str]) -> str:
    """Write what moved reach, what did not, and what is open or was held."""
    by_constant = []
    constants = CONSTANTS if DEMAND in columns else CONSTANTS[:1]
    # An answer that depends on the constant added to demand before the logarithm is no answer.
    for constant in constants:
        shifted = points.copy()
        if DEMAND in columns:
            shifted[DEMAND] += constant - CONSTANTS[0]
        by_constant.append(judge_columns(shifted, columns))
    answers: dict[str, list[str]] = {MOVED: [], STILL: [], OPEN: []}
    changed = []
    for column in columns:
        outcomes = {verdicts[column] for verdicts in by_constant}
        if len(outcomes) > 1:
            changed.append(column)
            outcomes = {OPEN}
        answers[outcomes.pop()].append(column)
    # A bounded reach is shown by the bound that is finite: the last distance, or the first.
    logs = points["low"].where(np.isfinite(points["low"]), points["high"])
    censoring = np.select([np.isneginf(points["low"]), np.isposinf(points["high"])], [BELOW, BEYOND], RUN)
    reasons = {CONSTANT: f"the same in all points, where reach is {range_of(np.exp(logs), censoring)}", HELD: HELD}
    for name, error in errors.items():
        answers.setdefault(reasons.get(error, "not told apart, or not in all records"), []).append(name)
    named = "; ".join([f"{text}: {', '.join(names)}" for text, names in answers.items() if names])
    lines = [f"As far as {points['arm'].nunique()} arms can say, {named}."]
    if changed:
        listed = ", ".join(map("{:,}".format, CONSTANTS))
        lines.append(f"Open as the answer depends on c in ln(demand + c), c of {listed}: {', '.join(changed)}.")
    lines.append(f'"{STILL}": the limits of the change over the whole range of a column are within {MARGIN:g} nats.')
    return "\n".join(lines)


def judge_columns(points: pd.DataFrame, columns: tuple[str, ...]) -> dict[str, str]:
    """Judge each column by its limits and by held-out arms; all are open with fewer than FEWEST bases."""
    out = dict.fromkeys(columns, OPEN)
    chosen, _ = select_separable(points, columns)
    model = fit(points, chosen)
    if model is None or points["base"].nunique() < FEWEST:
        return out
    limits, _ = jackknife(points, model)
    scores = compare(points, list_models(chosen), "arm")
    log_likelihood = scores["log likelihood"] if "log likelihood" in scores else pd.Series(dtype=float)
    for column, row in limits.iterrows():
        change = row[["low", "high"]] * np.ptp(np.log(points[column]))
        # Comparisons with nan are false: a column that could not be held out is no better, and open if it differs.
        if log_likelihood.get(column, np.nan) > log_likelihood.get("none", np.nan):
            if row["low"] > 0 or row["high"] < 0:
                out[str(column)] = MOVED
        elif change.abs().max() < MARGIN:
            out[str(column)] = STILL
    return out


def tabulate_reach(points: pd.DataFrame) -> pd.DataFrame:
    """Tabulate reach, and f there, of each arm's last probes: the geometric means of runs whose reach was measured."""
    last = points.groupby("run", sort=False).tail(1)
    exact = is_measured(last)
    # f at the end of what was tested is an upper bound of the f that a reach takes, and no part of the means.
    f = last["f_at_reach"].where(exact & (last["f_at_reach"] > 0))
    counts = {"runs": 1, "none": np.isneginf(last["low"]), "measured": exact, "the end": np.isposinf(last["high"])}
    by_arm = last["arm"]
    table = pd.DataFrame(counts, index=last.index).groupby(by_arm, sort=False).sum()
    table["reach"] = np.exp(np.log(last["reach"].where(exact)).groupby(by_arm).mean())
    table["f at reach"] = np.exp(np.log(f).groupby(by_arm).mean())
    table["least f"] = f.groupby(by_arm).min()
    table["most f"] = f.groupby(by_arm).max()
    return table


SPEC = EvaluationSpec(
    name="reach",
    description=__doc__,
    options=ReachOptions,
    excluded=OF_RUNS,
    each=False,
    takes=is_run,
    missing="RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo",
)
main = partial(run, SPEC, analyse)


if __name__ == "__main__":
    start(main)
