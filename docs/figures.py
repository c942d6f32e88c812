"""Plot the pictures of docs/findings.md from the records: python -m docs.figures FOLDER."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.window.plans import DCA, DCA_QUARTER, HALF, PLAIN
from experiments.window.results import GENERATED, Records, open_records
from lab.core.chart import GREY, Axis, concat, layer, plot_lines, save_chart
from lab.core.chart_style import BELOW, BEYOND, RUN

if TYPE_CHECKING:
    import altair as alt

ORDERS = {  # branches of D with the same documents, numbers and distances, but for the last
    "4 log": "as stated",
    "4 log reversed": "last stated first",
    "4 log shuffled": "random order",
    "4 uniform shuffled": "random order, uniform distances",
}
QUESTIONS = {"384": "window 384", "768": "window 768", "384 whole": "window 384, no document cut"}
SIZES = {"size_2M": "1.9M parameters", "size_6M": "5.8M parameters"}


def plot_findings(records: Records, out: Path) -> None:
    """Plot accuracy by distance for each order of asking (D) with reach against window (W), and windows at 384 (L)."""
    windows = records.runs[records.runs["stage"].isin(["W_1M", "W_2M", "W_4M", *SIZES])]
    cells = records.cells[records.cells["text"] == GENERATED]
    filled = cells[(cells["stage"] == "D") & (cells["prompt"] == cells["window"])]
    panels = []
    # Before all stages are recorded, the picture has the panels of those that are.
    for method, title in ((PLAIN, "The order of asking, same documents"), (DCA_QUARTER, "The same models under DCA")):
        if len(filled):
            panels.append(distance_panel(filled[filled["method"] == method], ORDERS, title))
    if len(windows):
        panels.append(window_panel(windows))
    if panels:
        save_chart(concat(*panels, columns=1), out / "findings.png")
    asked = cells[(cells["stage"] == "L") & (cells["prompt"] == 384) & (cells["method"] == PLAIN)]
    if len(asked):
        save_chart(distance_panel(asked, QUESTIONS, "Prompts of 384 tokens"), out / "lengths.png")


def distance_panel(cells: pd.DataFrame, names: dict[str, str], title: str) -> "alt.LayerChart":
    """Plot the mean accuracy of the branches that `names` has, by distance."""
    named = cells.assign(series=cells["branch"].map(names)).dropna(subset="series")
    chart = plot_lines(
        named.groupby(["series", "distance"])["score"].mean().reset_index(),
        Axis("distance", "distance (tokens)"),
        Axis("score", "accuracy", limits=(0, 1), percent=True),
        "series",
        names=list(names.values()),
        width=280,
    )
    return add_title(chart, title, named, ["series"])


def window_panel(runs: pd.DataFrame) -> "alt.LayerChart":
    """Plot the reach of each seed against its window, with the line on which reach is the window."""
    parts = []
    for method, name in ((PLAIN, ""), (DCA, ", DCA"), (HALF, ", STRING")):
        part = runs if method == PLAIN else runs[runs["stage"] == "W_1M"]
        reach = part[method]
        tokens = (part["tokens"] // 1_000_000).astype(str) + "M tokens"
        points = {
            "window": part["window"],
            "reach": reach.fillna(90),  # one that is none is on the lower edge, so that the median counts it
            "series": part["stage"].map(SIZES).fillna(tokens) + name,
            "outcome": np.select([reach.isna(), reach >= part[f"{method} last"]], [BELOW, BEYOND], RUN),
        }
        parts.append(pd.DataFrame(points).sort_values(["series", "window"]))
    table = pd.concat(parts)
    names = list(table["series"].unique())
    x, y = Axis("window", "window (tokens)", log=True), Axis("reach", "reach (tokens)", log=True, limits=(90, 800))
    plot = partial(plot_lines, x=x, y=y, width=280)
    # A median exists where some reaches are bounds, a mean does not.
    middles = table.groupby(["series", "window"])["reach"].median().reset_index()
    windows = sorted(set(table["window"]))
    chart = layer(
        plot(pd.DataFrame({"window": windows, "reach": windows, "series": "window"}), color=GREY, marks=False),
        plot(middles, series="series", names=names, marks=False),
        plot(table, series="series", names=names, points=True, legend=False),
    )
    return add_title(chart, "Reach against window; grey: reach = window", runs, ["stage", "branch"])


def add_title(chart: "alt.LayerChart", title: str, runs: pd.DataFrame, by: list[str]) -> "alt.LayerChart":
    """Add a title with the number of seeds of each condition, which the columns `by` name."""
    sizes = runs.groupby(by)["seed"].nunique()
    n = " to ".join(map(str, sorted({sizes.min(), sizes.max()})))
    return chart.properties(title=f"{title}, n = {n}")


if __name__ == "__main__":
    plot_findings(open_records(Path("experiments/window/records")), Path(sys.argv[1]))
