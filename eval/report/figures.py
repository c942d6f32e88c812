"""The figures of a report: charts that can be pointed at, zoomed and filtered by run."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from eval.report.frames import FEWEST_SEEDS, Runs, fold_accuracies, fold_reaches, fold_runs, list_outcomes
from lab.core.chart import NAMES, Rule, layer, plot_rows, words
from lab.core.chart_style import MEAN, RUN

MOST_BANDS = 4  # lines of a chart whose limits are drawn
MOST_METHODS = 7  # plotted in one panel, in addition to plain
BEYOND_LAST = 1.05  # of the last distance that was tested, where limits are cut off
FACET: dict[str, Any] = {"width": 240, "height": 160}
ROW = 16  # pixels: height of a method's row
LIMITS = "At each run's last probe."
BANDS = f" Bands are 95% limits: over {FEWEST_SEEDS} seeds or more, or of the tests where a condition has one run."


class Figure(NamedTuple):
    """One figure; `left` is the width of the y axis in pixels.

    `zooms` is whether the reader can zoom it and make its x axis logarithmic.
    """

    title: str
    caption: str
    chart: Any
    zooms: bool = False
    left: int = 70


def by_condition(runs: Runs, rows: pd.DataFrame, x: str, y: str, series: str, **options: Any) -> Any:
    """Draw a chart for each condition side by side."""
    conditions = [condition for condition in runs.conditions if condition in set(rows["condition"])]
    rows = rows.set_index("condition").loc[conditions].reset_index()
    return plot_rows(rows, x, y, series, **{"facet": "condition", **FACET, **options})


def over_tokens(runs: Runs, *, value: str, title: str) -> Figure | None:
    """Plot a measure against consumed tokens: runs as points, and the mean of a condition where none is censored."""
    rows = list_outcomes(runs.probes, value)
    if not (rows["outcome"] == RUN).any():  # one bound for all, which the tables show
        return None
    at = rows.groupby(["condition", "probe"], sort=False)["tokens"].mean().reset_index()
    groups = fold_reaches(runs.probes, ["condition", "probe"], value).merge(at, on=["condition", "probe"])
    is_whole = (groups["runs"] == groups["of"]) & groups["outcome"].isin([MEAN, RUN])
    points = pd.concat([rows[["condition", "run", "tokens", value, "outcome"]], groups[groups["outcome"] == MEAN]])
    # A line through the means stops where a run of the condition is censored: a gap, no false mean.
    line = groups.drop_duplicates(["condition", "probe"])[["condition", "tokens", value]]
    line[value] = line[value].where(is_whole)
    plot = partial(plot_rows, x="tokens", y=value, series="condition", names=runs.conditions)
    plot = partial(plot, x_title="consumed tokens", y_title=f"{words(value)} (tokens)")
    plot_runs = partial(plot, points, kind="point", legend=False, outcome="outcome")
    if len(runs.conditions) <= MOST_BANDS:
        plot_runs = partial(plot_runs, low="low", high="high")
    chart = layer(plot(line, marks=False), plot_runs())
    caption = f"Lines are means over seeds; bars are 95% limits, of {FEWEST_SEEDS} seeds or more."
    return Figure(title, caption, chart, zooms=True)


def reach_by_method(runs: Runs) -> Figure | None:
    """Draw reach under each position method (arXiv 2410.18745, Table 1)."""
    points = fold_reaches(runs.reaches, ["condition", "method"])
    methods = [name for name in runs.methods if name in set(points["method"])]
    if len(methods) < 2:
        return None
    points = points.set_index("method").loc[methods].reset_index()
    # The limits of a few seeds would stretch the axis far beyond the last distance.
    points["high"] = points["high"].clip(upper=runs.reaches["last_distance"].max() * BEYOND_LAST)
    chart = by_condition(
        runs,
        points,
        "reach",
        "method",
        "condition",
        kind="point",
        outcome="outcome",
        legend=False,
        names=runs.conditions,
        low="low",
        high="high",
        x_title="reach (tokens)",
        y_title="",
        width=420,
        columns=1,
        height={"step": ROW},
    )
    chart = chart.resolve_scale(y="independent")  # each condition has the rows of its own methods
    caption = "At each run's last probe: means over seeds, or runs; a run alone has the limits of its tests."
    return Figure("Reach under each position method", caption, chart, left=NAMES)


def by_distance(runs: Runs) -> Figure | None:
    """Plot retrieval accuracy against distance: methods in colour, conditions side by side."""
    rows = runs.distances
    if rows.empty:
        return None
    accuracy = rows.groupby("method")["score"].mean()
    best = {"plain", *accuracy.nlargest(MOST_METHODS).index}
    chosen = [name for name in runs.methods if name in best]
    mean = fold_accuracies(rows[rows["method"].isin(chosen)])
    rules = [Rule("y", threshold) for threshold in runs.thresholds]
    plot = partial(
        by_condition,
        names=chosen,
        rules=rules,
        percent=True,
        y_limits=(0, 1),
        x_title="distance of the number (tokens)",
    )
    caption = f"{LIMITS} The dashed level is the threshold."
    if len(chosen) <= MOST_BANDS:
        plot = partial(plot, low="low", high="high")
        caption += BANDS
    chart = plot(runs, mean, "distance", "share", "method", y_title="retrieval accuracy")
    if len(accuracy) > len(chosen):
        caption += f" The tables hold {len(accuracy) - len(chosen)} more methods, of lower accuracy."
    return Figure("Retrieval accuracy by distance", caption, chart)


def frequency(runs: Runs) -> Figure | None:
    """Plot the position frequency, and next to it the demand, by distance."""
    by = ["profile", "condition", "distance"]
    rows = runs.frequency.groupby(by, sort=False)["per distance"].mean().reset_index()
    if rows.empty:
        return None
    plot = partial(plot_rows, names=runs.conditions, log_x=True, log_y=True, marks=False, x_title="distance (tokens)")
    chart = plot(rows, "distance", "per distance", "condition", facet="profile", width=380, height=240)
    caption = "How often training used each relative position, and how many targets have their nearest evidence at each"
    caption += " distance; means over seeds."
    return Figure("Position frequency and demand", caption, chart)


def loss(runs: Runs) -> Figure | None:
    """Plot the training loss, and next to it the held-out loss, by consumed tokens."""
    by = ["kind", "condition", "bin"]
    rows = runs.losses.groupby(by, sort=False)[["tokens", "loss"]].mean().reset_index()
    if rows.empty:
        return None
    chart = plot_rows(
        rows,
        "tokens",
        "loss",
        "condition",
        names=runs.conditions,
        marks=bool(rows.groupby(by[:2])["tokens"].size().eq(1).any()),  # a line of one point would be invisible
        x_title="consumed tokens",
        y_title="loss (nats per token)",
        facet="kind",
        width=380,
        height=240,
    ).resolve_scale(y="independent")
    caption = "Training loss, a mean over each eightieth of the run, and loss on held-out documents at every probe"
    return Figure("Loss", caption + "; means over seeds.", chart, zooms=True)


def held_out(runs: Runs) -> Figure | None:
    """Draw the held-out loss by visible context."""
    mean = fold_runs(runs.contexts[runs.contexts["context"] > 0], ["condition", "context"], "loss")
    titles = "visible context (tokens, up to 2x)", "held-out loss (nats)"
    return curve(runs, mean, "context", "Held-out loss by visible context", titles)


def gain(runs: Runs) -> Figure | None:
    """Draw the gain from evidence by its distance."""
    mean = fold_runs(runs.gains, ["condition", "distance"], "gain")
    middle = runs.gains.groupby(["condition", "distance"], sort=False)["middle"].mean().reset_index()
    titles = "distance of the evidence (tokens)", "gain (nats)"
    return curve(runs, mean.merge(middle), "middle", "Gain from evidence by its distance", titles)


def curve(runs: Runs, mean: pd.DataFrame, x: str, title: str, titles: tuple[str, str]) -> Figure | None:
    """Plot means by distance, a line with limits for each condition; `titles` are those of x and y."""
    if mean.empty:
        return None
    plot = partial(plot_rows, names=runs.conditions, log_x=True, x_title=titles[0], y_title=titles[1])
    caption = f"{LIMITS} Lines are means over seeds."
    if len(runs.conditions) <= MOST_BANDS:
        plot = partial(plot, low="low", high="high")
        caption += BANDS
    return Figure(title, caption, plot(mean, x, "mean", "condition"))


DRAWN: tuple[Callable[[Runs], Figure | None], ...] = (
    partial(over_tokens, value="reach", title="Reach: the farthest one number is found at the threshold"),
    partial(over_tokens, value="effective_length", title="Effective length: four needles at the threshold"),
    loss,
    reach_by_method,
    by_distance,
    gain,
    held_out,
    frequency,
)
