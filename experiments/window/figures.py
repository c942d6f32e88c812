"""The figures of docs/findings.md, from the records."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.demand.plans import CONDITIONS, PLANS
from experiments.demand.results import PLOT_ACCURACY, read
from experiments.window.records import DCA, HALF, NEAR, PLAIN, Records, accuracy
from lab.core.chart import GREY, hconcat, layer, plot_rows, save
from lab.core.chart_style import BELOW, BEYOND, RUN
from lab.core.types import Row

GAPS = Path("experiments/demand/records/S1.jsonl.xz")
WIDTH, LIMITS = 380, (90, 800)  # of a panel, and of the axis of reach


def plot_grid(records: Records, path: Path) -> None:
    """Plot the mean accuracy at a window of 768 by prompt length and distance, plain, under STRING and under DCA."""
    cells = records.cells[(records.cells["stage"] == "W_1M") & (records.cells["branch"] == "768")]
    means = cells.groupby(["method", "prompt", "distance"])["score"].mean().rename("accuracy").reset_index()
    means = means.sort_values(["prompt", "distance"], ascending=[False, True])
    rows = means.set_index("method").loc[[PLAIN, HALF, DCA]].reset_index()
    plot = partial(plot_rows, kind="heat", percent=True, height=120, width=2 * WIDTH, columns=1)
    plot = partial(plot, x_title="distance (tokens)", y_title="prompt (tokens)")
    save(plot(rows, "distance", "prompt", "accuracy", "method"), path)


def plot_findings(records: Records, path: Path) -> None:
    """Plot reach against window, accuracy against position frequency (S2), and accuracy by distance (S1)."""
    panels = filter(None, [window_panel(records), frequency_panel(records), gap_panel()])
    save(hconcat(*panels), path)


def window_panel(records: Records) -> Any:
    """Plot the reach of each seed against its window, with the line on which reach is the window."""
    runs = records.runs[records.runs["stage"].isin(["W_1M", "W_2M", "W_4M"])]
    if runs.empty:
        return None
    rows: list[Row] = []
    for _, run in runs.iterrows():
        tokens = f"{run['tokens'] // 1_000_000}M tokens"
        series = [(PLAIN, tokens)]
        if run["stage"] == "W_1M":
            series += [(HALF, f"{tokens}, STRING"), (DCA, f"{tokens}, DCA")]
        for method, name in series:
            reach = run[method]
            outcome = BEYOND if reach >= run[f"{method} last"] else RUN
            if math.isnan(reach):  # on the lower edge, so that the median counts it
                reach, outcome = LIMITS[0], BELOW
            rows.append({"window": run["window"], "reach": reach, "series": name, "outcome": outcome})
    table = pd.DataFrame(rows).sort_values(["series", "window"])
    # plain first, then STRING, then DCA, as in the tables.
    names = sorted(table["series"].unique(), key=lambda name: ("STRING" in name, "DCA" in name, name))
    plot = partial(plot_rows, x="window", y="reach", log_x=True, log_y=True, width=WIDTH, y_limits=LIMITS)
    plot = partial(plot, x_title="window (tokens)", y_title="reach (tokens)")
    # A median exists where some reaches are bounds, a mean does not.
    middles = table.groupby(["series", "window"])["reach"].median().reset_index()
    windows = sorted(set(table["window"]))
    ends = pd.DataFrame({"window": windows, "reach": windows, "series": "window"})
    equal = plot(ends, color=GREY, marks=False)
    lines = plot(middles, series="series", names=names, marks=False)
    points = plot(table, series="series", names=names, kind="point", outcome="outcome", legend=False)
    return add_title(
        layer(equal, lines, points), "Reach against window; grey: reach = window", runs, ["stage", "branch"]
    )


def frequency_panel(records: Records) -> Any:
    """Plot accuracy against f at equal demand, the two conditions of a seed joined by a line."""
    runs = records.runs[(records.runs["stage"] == "S2") & records.runs["branch"].isin(["A", "B"])]
    if runs.empty:
        return None
    rows = []
    for _, run in runs.iterrows():
        score = accuracy(records, "S2", run["branch"], *NEAR)[run["seed"]]
        rows.append({"f": run["f"], "accuracy": score, "seed": f"seed {run['seed']}"})
    plot = partial(plot_rows, log_x=True, percent=True, y_limits=(0, 1), width=WIDTH)
    plot = partial(plot, x_title="f at 120 tokens (pairs trained)")
    chart = plot(rows, "f", "accuracy", "seed", y_title=f"accuracy at {NEAR[0]} to {NEAR[1]} tokens")
    return add_title(chart, "Tenfold f at equal demand (S2)", runs, ["branch"])


def gap_panel() -> Any:
    """Plot the mean accuracy by distance of the conditions of S1, which all have the same f."""
    plan = PLANS["S1"]
    tests, _ = read([GAPS])
    tests = tests[(tests["method"] == "rope+plain") & tests["arm"].isin(plan.arms)].dropna(subset=["score"])
    means = tests.groupby(["arm", "distance"])["score"].mean().reset_index()
    means["arm"] = means["arm"].map(CONDITIONS)
    names = [CONDITIONS[arm] for arm in plan.arms]
    chart = PLOT_ACCURACY(means, "distance", "score", "arm", names=names, width=WIDTH)
    return add_title(chart, "Equal f, other demand; ids with gaps (S1)", tests, ["arm"])


def add_title(chart: Any, title: str, runs: pd.DataFrame, by: list[str]) -> Any:
    """Add a title with the number of seeds of each condition, which the columns `by` name."""
    sizes = runs.groupby(by)["seed"].nunique()
    n = " to ".join(map(str, sorted({sizes.min(), sizes.max()})))
    return chart.properties(title=f"{title}, n = {n}")
