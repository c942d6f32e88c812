"""Explain reach by position frequency, demand, tokens, window and rotary base in one regression with limits.

    probe-lab reach RUN [RUN ...] [--option=value ...] [-o FOLDER]

    probe-lab reach runs/mini-*
    probe-lab reach runs/mini-* --last --at=96 -o results

Every probe of every run is a point, or with --last each run's last one. A run without probes of its own is a point if
probe-lab distance has measured it. Left out are probes that find half of the numbers at no distance, as retrieval has
not begun, and runs that others start from.

The log of reach is a linear function of six logs. They are those of f at one distance, the demand from there on,
tokens, window, rotary base, and the question's longest distance in the synthetic corpus (section). Demand is summed,
since few targets or none ask for one distance. One is added to it, so that a run without any has a log. A reach at the
end of what was tested counts as that far or farther. No reach counts as less than the first distance
(eval/engine/regression.py). Limits are at 95%, by the jackknife over bases. Columns that do not differ, that are held
in the runs of each base, that follow from others, or that are not in all records are named and left out. Models of each
column alone, of tokens and window, of none, and of all are compared by the log likelihood of bases, and of arms, that
were left out of the fit.

The last lines are the answer. A column has moved reach if its limits exclude 0 and it alone predicts arms left out
better than no column. It has not if its limits, over its whole range, are within --margin of 0 and it predicts them no
better. All else is open: also what depends on the constant that is added to demand, and any column of fewer than four
bases.

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
from lab.core.rows import CONFIDENCE
from lab.core.schema import Positive, PositiveFloat, Section
from lab.runs.arms import FEWEST, find_bases, find_differences, name_arms, without_common
from lab.runs.conditions import define_names
from lab.runs.tables import unpacked

CONSTANTS = (1, 10, 100, 1_000, 10_000)  # added to demand, so that a run without any has a log; the table has the first
MOVED, STILL, OPEN = "moved reach", "did not", "open"
FORMS = {"reach": ",.1f", "log likelihood": ".2f"}
FORMS |= dict.fromkeys(("f at reach", "least f", "most f"), ",.0f")
FORMS |= dict.fromkeys(("coefficient", "low", "high", "all less it", "from", "to"), "+.2f")


@dataclass(frozen=True, kw_only=True)
class ReachOptions(Section):
    """Options of this command."""

    at: Positive | None = None
    """Distance in tokens at which f is read; left out, half of the smallest window."""
    last: bool = False
    """Read each run's last probe only."""
    margin: PositiveFloat = 0.1
    """Change of ln reach over the whole range of a column, in nats, within which it has not moved reach."""


def analyse(request: Request) -> Result:
    """Fit and compare; the rows are those of all tables, and the points."""
    options: ReachOptions = request.options
    with unpacked(request.positional) as places:
        runs = read_runs(places)
        settings = collect_settings(runs)
        distance = options.at or min(int(config["data.window"]) for config in settings.values()) // 2
        every = read_points(runs, distance, last_only=options.last)
    begun = every[every["begun"]]
    is_bounded = np.isfinite(begun["low"]) | np.isfinite(begun["high"])
    points = begun[(begun["f"] > 0) & is_bounded].reset_index(drop=True)
    if points.empty:
        raise DataError(f"RUNS: no probe has reach and f at {distance} tokens; name runs that probed and counted")
    bases = find_bases({name: run.settings for name, run in runs.items()})
    used = {*points["run"], *(bases[name] for name in points["run"] if name in bases)}
    settings = collect_settings({name: run for name, run in runs.items() if name in used})
    arms, common = without_common(name_arms(settings))
    points["arm"] = points["run"].map(arms)
    points["base"] = [bases.get(name, name) for name in points["run"]]
    columns, faults = select_separable(points, COLUMNS)
    model = fit(points, columns)
    exact = int(is_measured(points).sum())
    ends = np.isposinf(points["high"]).sum()
    kinds = f"reach measured in {exact}, the end of what was tested in {ends}, none in {len(points) - exact - ends}"
    parts = [
        f"n = {len(points)} probes of {points['run'].nunique()} runs in {points['arm'].nunique()} arms; {kinds}\n"
        f"left out {len(every) - len(begun)} that have not begun, {len(begun) - len(points)} without f at {distance} "
        "tokens or a limit of reach\n"
        f"arms differ in: {', '.join(find_differences(settings)) or 'nothing'}"
    ]
    tables = {"points": points.set_index("run"), "arms": at_the_reach(points)}
    if model is None:
        rule = f"a regression on {', '.join(columns) or 'nothing'} takes at least {len(columns) + SPARE}"
        parts.append(f"no regression: reach was measured in {exact} probes, and {rule}")
    else:
        limits, n_bases = jackknife(points, model)
        tables["coefficients"] = limits
        parts.append(regression_text(limits, model, n_bases, faults))
        models = list_models(columns)
        for by in ("base", "arm"):
            tables[f"models by {by}"] = compare(points, models, by)
            parts.append(to_text(tables[f"models by {by}"], FORMS))
    filled = tables["arms"].dropna(axis="columns", how="all")
    about = [f"in most arms: {common}"] if common else []
    about += define_names(tables["arms"].index)
    parts.append("\n".join(["last probes, geometric means:", to_text(filled, FORMS), *about]))
    if model is not None:
        parts.append(answer(points, columns, faults, options.margin))
    rows = []
    for name, table in tables.items():
        rows += [{"table": name, **row} for row in table.reset_index().to_dict("records")]
    text = "\n\n".join(parts)
    wrapped = "\n".join(fill(line, WIDEST) for line in text.split("\n"))
    return request.save("reach", wrapped, rows)


def list_models(columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """List the columns of the models that are compared."""
    models: dict[str, tuple[str, ...]] = {"none": (), **{column: (column,) for column in columns}}
    if {"tokens", "window"} <= {*columns}:
        models["tokens, window"] = ("tokens", "window")
    return {**models, "all": columns}


def regression_text(table: pd.DataFrame, model: Regression, n_bases: int, faults: Mapping[str, str]) -> str:
    """Write the regression with its limits, and the columns that are not in it."""
    lines = [f"ln reach = {model.intercept:.2f} + sum of coefficient * ln column; residuals of {model.sigma:.2f} nats"]
    if len(table):
        lines.append(to_text(table, FORMS))
    lines.append(f"{CONFIDENCE:g} limits by the jackknife over {n_bases} bases, or runs without one")
    if np.isinf(table.to_numpy()).any():
        lines.append("inf: open, where reach was only bounded, or one base alone tells")
    by_fault: dict[str, list[str]] = {}
    for column, fault in faults.items():
        by_fault.setdefault(fault, []).append(column)
    lines += [f"not in the regression, {fault}: {', '.join(columns)}" for fault, columns in by_fault.items()]
    return "\n".join(lines)


def answer(points: pd.DataFrame, columns: tuple[str, ...], faults: Mapping[str, str], margin: float) -> str:
    """Write what moved reach, what did not, and what is open or was held."""
    by_constant = []
    # An answer that depends on the constant added to demand before the logarithm is no answer.
    for constant in CONSTANTS if DEMAND in columns else CONSTANTS[:1]:
        shifted = points
        if DEMAND in columns:
            shifted = points.assign(**{DEMAND: points[DEMAND] + constant - CONSTANTS[0]})
        by_constant.append(verdicts(shifted, columns, margin))
    said: dict[str, list[str]] = {MOVED: [], STILL: [], OPEN: []}
    changed = []
    for column in columns:
        found = {each[column] for each in by_constant}
        said[found.pop() if len(found) == 1 else OPEN].append(column)
        changed += [column] if found else []
    logs = points["low"].where(np.isfinite(points["low"]), points["high"])
    outcomes = np.select([np.isneginf(points["low"]), np.isposinf(points["high"])], [BELOW, BEYOND], RUN)
    ends = range_of(np.exp(logs), outcomes)
    reasons = {CONSTANT: f"the same in all points, where reach is {ends}", HELD: HELD}
    for name, fault in faults.items():
        said.setdefault(reasons.get(fault, "not told apart, or not in all records"), []).append(name)
    named = "; ".join(f"{text}: {', '.join(names)}" for text, names in said.items() if names)
    lines = [f"As far as {points['arm'].nunique()} arms can say, {named}."]
    if changed:
        constants = ", ".join(f"{constant:,}" for constant in CONSTANTS)
        lines.append(f"Open as the answer depends on c in ln(demand + c), c of {constants}: {', '.join(changed)}.")
    lines.append(f'"{STILL}": the limits of the change over the whole range of a column are within {margin:g} nats.')
    return "\n".join(lines)


def verdicts(points: pd.DataFrame, columns: tuple[str, ...], margin: float) -> dict[str, str]:
    """Judge each column by its limits and by arms that were left out; all are open with fewer than FEWEST bases."""
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
        is_apart = row["low"] > 0 or row["high"] < 0
        is_better = log_likelihood.get(column, np.nan) > log_likelihood.get("none", np.nan)
        out[str(column)] = MOVED if is_apart and is_better else OPEN
        if not is_better and change.abs().max() < margin:
            out[str(column)] = STILL
    return out


def at_the_reach(points: pd.DataFrame) -> pd.DataFrame:
    """Lay out reach, and f there, of each arm's last probes: the geometric means of the runs whose reach was measured.

    f at the end of what was tested bounds the f that a reach takes from above: it is no part of the means.
    """
    last = points.groupby("run", sort=False).tail(1)
    exact = is_measured(last)
    f = last["f_at_reach"].where(exact & (last["f_at_reach"] > 0))
    columns = {"none": np.isneginf(last["low"]), "measured": exact, "the end": np.isposinf(last["high"])}
    logs = {"reach": np.log(last["reach"].where(exact)), "f at reach": np.log(f), "least f": f, "most f": f}
    arms = last.assign(runs=1, **columns, **logs).groupby("arm", sort=False)
    table = arms[["runs", *columns]].sum()
    table[["reach", "f at reach"]] = np.exp(arms[["reach", "f at reach"]].mean())
    return table.assign(**{"least f": arms["least f"].min(), "most f": arms["most f"].max()})


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
