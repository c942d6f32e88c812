"""The figures of docs/findings.md, from the records."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.window.plans import DCA, HALF, PLAIN
from experiments.window.records import NEAR, Records, accuracy, read_tests
from lab.analysis.table import unpacked
from lab.core.chart import GREY, hconcat, layer, plot_rows, save
from lab.core.chart_style import BELOW, BEYOND, RUN
from lab.probe.reach import ONE

CONDITIONS = {  # of S1, by their names in the records
    "base": "base model",
    "all": "unmasked",
    "far_off": "far-masked",
    "near_off": "near-masked",
    "kind_off": "matched control",
}
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
    windows = records.runs[records.runs["stage"].isin(["W_1M", "W_2M", "W_4M"])]
    pairs = records.runs[(records.runs["stage"] == "S2") & records.runs["branch"].isin(["A", "B"])]
    panels = [gap_panel()]
    # Before all stages are recorded, the picture has the panels of those that are.
    if len(pairs):
        panels.insert(0, frequency_panel(records, pairs))
    if len(windows):
        panels.insert(0, window_panel(windows))
    save(hconcat(*panels), path)


def window_panel(runs: pd.DataFrame) -> Any:
    """Plot the reach of each seed against its window, with the line on which reach is the window."""
    parts = []
    for method, name in ((PLAIN, ""), (DCA, ", DCA"), (HALF, ", STRING")):
        part = runs if method == PLAIN else runs[runs["stage"] == "W_1M"]
        reach = part[method]
        outcome = np.select([reach.isna(), reach >= part[f"{method} last"]], [BELOW, BEYOND], RUN)
        series = (part["tokens"] // 1_000_000).astype(str) + f"M tokens{name}"
        # A reach that is none is on the lower edge, so that the median counts it.
        points = {"window": part["window"], "reach": reach.fillna(LIMITS[0]), "series": series, "outcome": outcome}
        parts.append(pd.DataFrame(points).sort_values(["series", "window"]))
    table = pd.concat(parts)
    names = list(table["series"].unique())
    plot = partial(plot_rows, x="window", y="reach", log_x=True, log_y=True, width=WIDTH, y_limits=LIMITS)
    plot = partial(plot, x_title="window (tokens)", y_title="reach (tokens)")
    # A median exists where some reaches are bounds, a mean does not.
    middles = table.groupby(["series", "window"])["reach"].median().reset_index()
    windows = sorted(set(table["window"]))
    equal = plot(pd.DataFrame({"window": windows, "reach": windows, "series": "window"}), color=GREY, marks=False)
    lines = plot(middles, series="series", names=names, marks=False)
    points = plot(table, series="series", names=names, kind="point", outcome="outcome", legend=False)
    chart = layer(equal, lines, points)
    return add_title(chart, "Reach against window; grey: reach = window", runs, ["stage", "branch"])


def frequency_panel(records: Records, runs: pd.DataFrame) -> Any:
    """Plot accuracy against f at equal demand, the two conditions of a seed joined by a line."""
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
    rows = []
    with unpacked([Path("experiments/demand/records/S1.jsonl.xz")]) as places:
        for place in places:
            _, seed, arm = place.name.split("-", 2)
            for row in read_tests(place):
                # From a quarter of the window on.
                if row["metric"] == ONE and row["distance"] >= 48:
                    cell = {"distance": row["distance"], "score": row["score"]}
                    rows.append({"arm": CONDITIONS[arm], "seed": seed, **cell})
    tests = pd.DataFrame(rows)
    means = tests.groupby(["arm", "distance"])["score"].mean().reset_index()
    plot = partial(plot_rows, names=list(CONDITIONS.values()), percent=True, y_limits=(0, 1), width=WIDTH)
    chart = plot(means, "distance", "score", "arm", x_title="distance (tokens)", y_title="accuracy")
    return add_title(chart, "Equal f, other demand; ids with gaps (S1)", tests, ["arm"])


def add_title(chart: Any, title: str, runs: pd.DataFrame, by: list[str]) -> Any:
    """Add a title with the number of seeds of each condition, which the columns `by` name."""
    sizes = runs.groupby(by)["seed"].nunique()
    n = " to ".join(map(str, sorted({sizes.min(), sizes.max()})))
    return chart.properties(title=f"{title}, n = {n}")
