"""The figures of docs/findings.md, from the records."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.window.plans import DCA, HALF, PLAIN
from experiments.window.results import Records, read_distances
from lab.analysis.table import unpacked
from lab.core.chart import GREY, Axis, concat, facet, layer, plot_heat, plot_lines, save_chart
from lab.core.chart_style import BELOW, BEYOND, RUN
from lab.probe.reach import ONE

if TYPE_CHECKING:
    import altair as alt

CONDITIONS = {  # of S1, by their names in the records
    "base": "base model",
    "all": "unmasked",
    "far_off": "far-masked",
    "near_off": "near-masked",
    "kind_off": "matched control",
}


def plot_grid(records: Records, path: Path) -> None:
    """Plot the mean accuracy at a window of 768 by prompt length and distance, plain, under STRING and under DCA."""
    cells = records.cells[(records.cells["stage"] == "W_1M") & (records.cells["branch"] == "768")]
    means = cells.groupby(["method", "prompt", "distance"])["score"].mean().rename("accuracy").reset_index()
    means = means.sort_values(["prompt", "distance"], ascending=[False, True])
    rows = means.set_index("method").loc[[PLAIN, HALF, DCA]].reset_index()
    axes = Axis("distance", "distance (tokens)"), Axis("prompt", "prompt (tokens)")
    chart = plot_heat(rows, *axes, "accuracy", percent=True, height=120, width=760)
    save_chart(facet(chart, "method", columns=1), path)


def plot_findings(records: Records, out: Path) -> None:
    """Plot reach against window, accuracy against position frequency (S2), and accuracy by distance (S1)."""
    if (records.runs["stage"] == "W_1M").any():
        plot_grid(records, out / "prompts.png")
    windows = records.runs[records.runs["stage"].isin(["W_1M", "W_2M", "W_4M"])]
    pairs = records.runs[(records.runs["stage"] == "S2") & records.runs["branch"].isin(["A", "B"])]
    panels = [gap_panel()]
    # Before all stages are recorded, the picture has the panels of those that are.
    if len(pairs):
        panels.insert(0, frequency_panel(records, pairs))
    if len(windows):
        panels.insert(0, window_panel(windows))
    save_chart(concat(*panels, columns=1), out / "findings.png")


def window_panel(runs: pd.DataFrame) -> "alt.LayerChart":
    """Plot the reach of each seed against its window, with the line on which reach is the window."""
    parts = []
    for method, name in ((PLAIN, ""), (DCA, ", DCA"), (HALF, ", STRING")):
        part = runs if method == PLAIN else runs[runs["stage"] == "W_1M"]
        reach = part[method]
        outcome = np.select([reach.isna(), reach >= part[f"{method} last"]], [BELOW, BEYOND], RUN)
        series = (part["tokens"] // 1_000_000).astype(str) + f"M tokens{name}"
        # A reach that is none is on the lower edge, so that the median counts it.
        points = {"window": part["window"], "reach": reach.fillna(90), "series": series, "outcome": outcome}
        parts.append(pd.DataFrame(points).sort_values(["series", "window"]))
    table = pd.concat(parts)
    names = list(table["series"].unique())
    x, y = Axis("window", "window (tokens)", log=True), Axis("reach", "reach (tokens)", log=True, limits=(90, 800))
    plot = partial(plot_lines, x=x, y=y, width=280)
    # A median exists where some reaches are bounds, a mean does not.
    middles = table.groupby(["series", "window"])["reach"].median().reset_index()
    windows = sorted(set(table["window"]))
    equal = plot(pd.DataFrame({"window": windows, "reach": windows, "series": "window"}), color=GREY, marks=False)
    lines = plot(middles, series="series", names=names, marks=False)
    points = plot(table, series="series", names=names, points=True, legend=False)
    chart = layer(equal, lines, points)
    return add_title(chart, "Reach against window; grey: reach = window", runs, ["stage", "branch"])


def frequency_panel(records: Records, runs: pd.DataFrame) -> "alt.LayerChart":
    """Plot accuracy against f at equal demand, the two conditions of a seed joined by a line."""
    rows = []
    for _, run in runs.iterrows():
        score = records.accuracy("S2", run["branch"], 72, 120)[run["seed"]]
        rows.append({"f": run["f"], "score": score, "seed": f"seed {run['seed']}"})
    axes = Axis("f", "f at 120 tokens (pairs trained)", log=True), accuracy_axis("accuracy at 72 to 120 tokens")
    chart = plot_lines(rows, *axes, "seed", width=280)
    return add_title(chart, "Tenfold f at equal demand (S2)", runs, ["branch"])


def gap_panel() -> "alt.LayerChart":
    """Plot the mean accuracy by distance of the conditions of S1, which all have the same f."""
    rows = []
    with unpacked([Path("experiments/demand/records/S1.jsonl.xz")]) as places:
        for place in places:
            _, seed, arm = place.name.split("-", 2)
            for row in read_distances(place):
                if row["metric"] == ONE and row["distance"] >= 48:  # a quarter of the window
                    cell = {"distance": row["distance"], "score": row["score"]}
                    rows.append({"arm": CONDITIONS[arm], "seed": seed, **cell})
    tests = pd.DataFrame(rows)
    means = tests.groupby(["arm", "distance"])["score"].mean().reset_index()
    axes = Axis("distance", "distance (tokens)"), accuracy_axis("accuracy")
    chart = plot_lines(means, *axes, "arm", names=list(CONDITIONS.values()), width=280)
    return add_title(chart, "Equal f, other demand; ids with gaps (S1)", tests, ["arm"])


accuracy_axis = partial(Axis, "score", limits=(0, 1), percent=True)


def add_title(chart: "alt.LayerChart", title: str, runs: pd.DataFrame, by: list[str]) -> "alt.LayerChart":
    """Add a title with the number of seeds of each condition, which the columns `by` name."""
    sizes = runs.groupby(by)["seed"].nunique()
    n = " to ".join(map(str, sorted({sizes.min(), sizes.max()})))
    return chart.properties(title=f"{title}, n = {n}")
