"""The figures of a report: charts that can be pointed at, zoomed and filtered by run."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from eval.report.data import FEWEST_SEEDS, Runs, farthest, fold_runs, outcomes, reach_points, shares
from lab.core.chart import NAMES, Rule, layer, plot_rows, words
from lab.core.chart_style import MEAN, RUN, range_of
from lab.counts.saved import F

MOST_BANDS = 4  # lines of a chart whose limits are drawn
DODGE = 0.012  # of the axis of tokens, between the points of two arms
MOST_METHODS = 8  # that are drawn in one panel
STRING = r"^string\(shift=(?P<shift>\d+)(?:,window=(?P<window>\d+))?\)$"
DEFAULT_WINDOW = 128  # of STRING, which names of methods leave out
BEYOND_LAST = 1.05  # of the last distance that was tested, where limits are cut off
FACET: dict[str, Any] = {"width": 240, "height": 160}
ROW = 16  # pixels: height of a method's row
CELL = 34  # and of a window's
HEAT = 100  # the axis and the scale of colours of a heat map
LIMITS = "At each run's last probe."
BANDS = f" Bands are 95% limits: over {FEWEST_SEEDS} seeds or more, or of the tests where an arm has one run."


class Figure(NamedTuple):
    """One figure; `log` is the axis that the reader can make logarithmic, `left` the width of the y axis in pixels."""

    name: str
    title: str
    caption: str
    chart: Any
    log: str = ""
    left: int = 70


def by_arm(runs: Runs, rows: pd.DataFrame, x: str, y: str, series: str, **options: Any) -> Any:
    """Draw a chart for each arm side by side."""
    arms = [arm for arm in runs.arms if arm in set(rows["arm"])]
    if len(runs.arms) > 1:
        options = {"facet": "arm", **FACET, **options}
    return plot_rows(rows.set_index("arm").loc[arms].reset_index(), x, y, series, **options)


def over_tokens(runs: Runs, *, value: str, what: str, name: str) -> Figure | None:
    """Draw a measure against consumed tokens: runs as points, and the mean of an arm where none of them is censored.

    Points of arms stand side by side, so that censored runs, all at one bound, are seen.
    """
    rows = outcomes(runs.probes, value)
    if not (rows["outcome"] == RUN).any():  # one bound for all, which the tables show
        return None
    at = rows.groupby(["arm", "probe"], sort=False)["tokens"].mean().reset_index()
    groups = reach_points(runs.probes, ["arm", "probe"], value).merge(at, on=["arm", "probe"])
    is_whole = (groups["runs"] == groups["of"]) & groups["outcome"].isin([MEAN, RUN])
    # Arms at one probe have equal tokens, and their points would cover one another.
    step = (rows["tokens"].max() - rows["tokens"].min()) * DODGE
    middle = (len(runs.arms) - 1) / 2
    shift = {arm: step * (number - middle) for number, arm in enumerate(runs.arms)}
    rows, groups = (table.assign(at=table["tokens"] + table["arm"].map(shift)) for table in (rows, groups))
    points = pd.concat([rows[["arm", "run", "tokens", "at", value, "outcome"]], groups[groups["outcome"] == MEAN]])
    # A line through the means stops where a run of the arm is censored: a gap, no false mean.
    line = groups.drop_duplicates(["arm", "probe"])[["arm", "at", value]]
    line[value] = line[value].where(is_whole)
    plot = partial(plot_rows, x="at", y=value, series="arm", names=runs.arms)
    plot = partial(plot, x_title="consumed tokens", y_title=f"{words(value)} (tokens)")
    plot_runs = partial(plot, points, kind="point", legend=False, outcome="outcome")
    bars = ""
    if len(runs.arms) <= MOST_BANDS:
        plot_runs = partial(plot_runs, low="low", high="high")
        bars = f", with 95% limits of {FEWEST_SEEDS} and more"
    chart = layer(plot(line, marks=False), plot_runs())
    caption = f"Lines are means over seeds{bars}." if len(runs.runs) > 1 else ""
    passing = "the threshold of each run" if runs.threshold is None else f"{runs.threshold:.0%} of the tests"
    return Figure(name, what.format(passing=passing), caption, chart, "x")


def reach_by_method(runs: Runs) -> Figure | None:
    """Draw reach under each position method (arXiv 2410.18745, Table 1)."""
    points = reach_points(runs.reaches, ["arm", "method"])
    methods = [name for name in runs.methods if name in set(points["method"])]
    if len(methods) < 2:
        return None
    points = points.set_index("method").loc[methods].reset_index()
    # An open limit would stretch the axis to infinity.
    points["high"] = points["high"].clip(upper=farthest(runs.reaches) * BEYOND_LAST)
    chart = by_arm(
        runs,
        points,
        "reach",
        "method",
        "arm",
        kind="point",
        outcome="outcome",
        legend=False,
        names=runs.arms,
        low="low",
        high="high",
        x_title="reach (tokens)",
        y_title="",
        width=420,
        columns=1,
        height={"step": ROW},
    )
    if len(runs.arms) > 1:  # each with the rows of its own methods
        chart = chart.resolve_scale(y="independent")
    caption = "At each run's last probe: means over seeds, or runs; a run alone has the limits of its tests."
    title = "Reach under each position method"
    return Figure("reach_by_method", title, caption, chart, left=NAMES)


def by_shift_and_window(runs: Runs) -> Figure | None:
    """Draw reach by the shift and window of STRING, for the arms with at least two of each (its Figure 7)."""
    cells = string_cells(runs.reaches)
    if cells.empty:
        return None
    cells = cells.sort_values("shift", kind="stable").sort_values("window", ascending=False, kind="stable")
    height = CELL * max(3, cells["window"].nunique())
    plot = partial(by_arm, kind="heat", text="text", x_title="shift S", y_title="window W", height=height)
    chart = plot(runs, cells, "shift", "window", "reach")
    caption = "At the last probe, in tokens: the mean over seeds, or the least and the most where one is censored;"
    caption += " + it reaches the last distance tested; < it fails at the first. The colour is that of the median run."
    return Figure("shift_and_window", "Reach by STRING's shift and window", caption, chart, left=HEAT)


def string_cells(reaches: pd.DataFrame) -> pd.DataFrame:
    """Fold the runs of an arm by shift and window, with the text of each cell."""
    parameters = reaches["method"].astype(str).str.extract(STRING).dropna(subset=["shift"])
    rows = reaches.join(parameters.fillna(str(DEFAULT_WINDOW)).astype(int), how="inner")
    # Arms that tried a single shift or window have no grid to show.
    sizes = rows.groupby("arm")[["shift", "window"]].transform("nunique")
    by = ["arm", "shift", "window"]
    groups = reach_points(rows[(sizes >= 2).all(axis="columns")], by).groupby(by, sort=False)
    texts = [range_of(points["reach"], points["outcome"]) for _, points in groups]
    return groups.agg({"reach": "median", "runs": "sum"}).assign(text=texts).reset_index()


def by_distance(runs: Runs) -> Figure | None:
    """Plot retrieval accuracy against distance: methods in colour, arms side by side."""
    rows = runs.distances
    reach = outcomes(runs.reaches).groupby("method")["reach"].median()
    arms = rows.groupby("method")["arm"].nunique()
    # plain first, then the methods that most arms have, then those that reach farthest.
    chosen = sorted(arms.index, key=lambda name: (name != "plain", -arms[name], -reach.get(name, 0)))
    chosen = chosen[:MOST_METHODS]
    mean = shares(rows[rows["method"].isin(chosen)])
    if mean.empty:
        return None
    names = [name for name in runs.methods if name in chosen]
    plot = partial(by_arm, names=names, percent=True, y_limits=(0, 1), x_title="distance of the number (tokens)")
    caption = LIMITS
    if len(chosen) <= MOST_BANDS:
        plot = partial(plot, low="low", high="high")
        caption += BANDS
    if runs.threshold is not None:
        plot = partial(plot, rules=[Rule("y", runs.threshold)])
        caption += " The dashed level is the threshold."
    chart = plot(runs, mean, "distance", "share", "method", y_title="retrieval accuracy")
    settings = rows["method"].nunique()
    if settings > len(chosen):
        caption += f" Of {settings} settings, {MOST_METHODS} that most arms have; the tables hold the others."
    return Figure("by_distance", "Retrieval accuracy by distance", caption, chart)


def frequency(runs: Runs) -> Figure | None:
    """Plot the position frequency, and next to it the demand, by distance."""
    by = ["profile", "arm", "distance"]
    rows = runs.frequency.groupby(by, sort=False)["per distance"].mean().reset_index()
    if rows.empty:
        return None
    plot = partial(plot_rows, names=runs.arms, log_x=True, log_y=True, marks=False, x_title="distance (tokens)")
    title, caption = "Position frequency", "How often training used each relative position"
    if rows["profile"].nunique() > 1:
        plot = partial(plot, facet="profile", width=380, height=240)
        title += " and demand"
        caption += ", and how many targets have their nearest evidence at each distance"
    else:
        plot = partial(plot, y_title=F)
    caption += "; means over seeds." if len(runs.runs) > 1 else "."
    return Figure("frequency", title, caption, plot(rows, "distance", "per distance", "arm"))


def loss(runs: Runs) -> Figure | None:
    """Plot the training loss, and next to it the held-out loss, by consumed tokens."""
    by = ["kind", "arm", "bin"]
    rows = runs.losses.groupby(by, sort=False)[["tokens", "loss"]].mean().reset_index()
    if rows.empty:
        return None
    chart = plot_rows(
        rows,
        "tokens",
        "loss",
        "arm",
        names=runs.arms,
        marks=bool(rows.groupby(by[:2])["tokens"].size().eq(1).any()),  # a line of one point would be invisible
        x_title="consumed tokens",
        y_title="loss (nats per token)",
        facet="kind",
        width=380,
        height=240,
    ).resolve_scale(y="independent")
    caption = "Training loss, a mean over each eightieth of the run, and loss on held-out documents at every probe"
    return Figure("loss", "Loss", caption + ("; means over seeds." if len(runs.runs) > 1 else "."), chart, "x")


def held_out(runs: Runs) -> Figure | None:
    """Draw the held-out loss by visible context."""
    mean = fold_runs(runs.contexts[runs.contexts["context"] > 0], ["arm", "context"], "loss")
    titles = "visible context (tokens, up to 2x)", "held-out loss (nats)"
    return curve(runs, mean, "context", "Held-out loss by visible context", "context", titles)


def gain(runs: Runs) -> Figure | None:
    """Draw the gain from evidence by its distance."""
    mean = fold_runs(runs.gains, ["arm", "distance"], "gain")
    middle = runs.gains.groupby(["arm", "distance"], sort=False)["middle"].mean().reset_index()
    titles = "distance of the evidence (tokens)", "gain (nats)"
    return curve(runs, mean.merge(middle), "middle", "Gain from evidence by its distance", "gain", titles)


def curve(runs: Runs, mean: pd.DataFrame, x: str, title: str, name: str, titles: tuple[str, str]) -> Figure | None:
    """Plot means by distance, a line with limits for each arm; `titles` are those of x and y."""
    if mean.empty:
        return None
    plot = partial(plot_rows, names=runs.arms, log_x=True, x_title=titles[0], y_title=titles[1])
    caption = LIMITS
    if len(runs.runs) > 1:
        caption += " Lines are means over seeds."
    if len(runs.arms) <= MOST_BANDS:
        plot = partial(plot, low="low", high="high")
        if "low" in mean:
            caption += BANDS
    return Figure(name, title, caption, plot(mean, x, "mean", "arm"))


DRAWN: tuple[Callable[[Runs], Figure | None], ...] = (
    partial(over_tokens, value="reach", what="Reach: one number, {passing}", name="growth"),
    partial(
        over_tokens, value="effective_length", what="Effective length: four needles, {passing}", name="effective_length"
    ),
    loss,
    reach_by_method,
    by_shift_and_window,
    by_distance,
    gain,
    held_out,
    frequency,
)
