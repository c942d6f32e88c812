"""The figures of a report: charts that can be pointed at and zoomed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from eval.report.frames import FEWEST_SEEDS, Runs, fold_runs, list_outcomes
from lab.core.chart import Axis, Rule, facet, layer, plot_lines, words
from lab.core.chart_style import RUN
from lab.results.statistics import SHARES

if TYPE_CHECKING:
    import altair as alt

MOST_BANDS = 4  # lines of a chart whose limits are drawn
LIMITS = "At each run's last probe."
BANDS = f" Bands are 95% limits: over {FEWEST_SEEDS} seeds or more, or of the tests where a condition has one run."


class Figure(NamedTuple):
    """One figure; `zooms` is whether the reader can zoom it and make its x axis logarithmic."""

    title: str
    caption: str
    chart: alt.LayerChart | alt.FacetChart
    zooms: bool = False


def plot_over_tokens(runs: Runs, value: str, title: str) -> Figure | None:
    """Plot a measure against consumed tokens: runs as points, and the mean of a condition where none is censored."""
    results = runs.results[runs.results["metric"].str.startswith(words(value))].rename(columns={"score": value})
    rows = list_outcomes(results, value)
    is_measured = rows["outcome"] == RUN
    if not is_measured.any():  # one bound for all, which the tables show
        return None
    # A mean that includes a bound would be no estimate: the line has a gap there.
    exact = rows.assign(**{value: rows[value].where(is_measured)}).groupby(["condition", "probe"], sort=False)
    line = exact[["tokens", value]].mean(skipna=False).reset_index()
    axes = Axis("tokens", "consumed tokens"), Axis(value, f"{words(value)} (tokens)")
    plot = partial(plot_lines, x=axes[0], y=axes[1], series="condition", names=runs.conditions)
    points = rows[["condition", "run", "tokens", value, "outcome"]]
    chart = layer(plot(line, marks=False), plot(points, points=True, legend=False))
    return Figure(title, "Points are runs, lines are means over seeds.", chart, zooms=True)


def plot_distances(runs: Runs) -> Figure | None:
    """Plot retrieval accuracy against distance: methods in colour, conditions side by side."""
    rows = runs.distances
    if rows.empty:
        return None
    best = ["plain", *rows.groupby("method")["score"].mean().nlargest(7).index]
    names = [name for name in runs.methods if name in best]
    has_bands = len(names) <= MOST_BANDS
    caption = f"{LIMITS} The dashed level is the threshold. Plain and the seven most accurate methods are shown."
    if has_bands:
        caption += BANDS
    y = Axis("mean", "retrieval accuracy", limits=(0, 1), percent=True)
    chart = plot_lines(
        fold_runs(rows[rows["method"].isin(names)], ["condition", "method", "distance"], ends=SHARES),
        Axis("distance", "distance of the number (tokens)"),
        y,
        "method",
        names=names,
        limits=has_bands,
        rules=[Rule("y", threshold) for threshold in runs.thresholds],
        width=240,
        height=160,
    )
    return Figure("Retrieval accuracy by distance", caption, facet(chart, "condition"))


def plot_frequency(runs: Runs) -> Figure | None:
    """Plot the position frequency, and next to it the demand, by distance."""
    by = ["profile", "condition", "distance"]
    rows = runs.frequency.groupby(by, sort=False)["per distance"].mean().reset_index()
    if rows.empty:
        return None
    axes = Axis("distance", "distance (tokens)", log=True), Axis("per distance", log=True)
    chart = plot_lines(rows, *axes, "condition", names=runs.conditions, marks=False, width=380, height=240)
    caption = (
        "How often training used each relative position, and how many targets have their nearest evidence at each "
        "distance; means over seeds."
    )
    return Figure("Position frequency and demand", caption, facet(chart, "profile"))


def plot_loss(runs: Runs) -> Figure | None:
    """Plot the training loss, and next to it the held-out loss, by consumed tokens."""
    by = ["kind", "condition", "bin"]
    rows = runs.losses.groupby(by, sort=False)[["consumed_tokens", "loss"]].mean().reset_index()
    if rows.empty:
        return None
    axes = Axis("consumed_tokens"), Axis("loss", "loss (nats per token)")
    marks = bool(rows.groupby(by[:2])["loss"].size().eq(1).any())  # a line of one point would be invisible
    chart = plot_lines(rows, *axes, "condition", names=runs.conditions, marks=marks, width=380, height=240)
    caption = (
        "Training loss, a mean over each eightieth of the run, and loss on held-out documents at every probe; means "
        "over seeds."
    )
    return Figure("Loss", caption, facet(chart, "kind").resolve_scale(y="independent"), zooms=True)


def plot_means(runs: Runs, frame: str, value: str, x: Axis, y_title: str, title: str) -> Figure | None:
    """Plot means by distance, a line with limits for each condition."""
    rows = getattr(runs, frame)
    mean = fold_runs(rows[rows[x.column] > 0], ["condition", x.column], value)
    if mean.empty:
        return None
    caption = f"{LIMITS} Lines are means over seeds."
    has_bands = len(runs.conditions) <= MOST_BANDS
    if has_bands:
        caption += BANDS
    chart = plot_lines(mean, x, Axis("mean", y_title), "condition", limits=has_bands, names=runs.conditions)
    return Figure(title, caption, chart)


FIGURES: tuple[Callable[[Runs], Figure | None], ...] = (
    partial(plot_over_tokens, value="reach", title="Reach: the farthest one number is found at the threshold"),
    partial(plot_over_tokens, value="effective_length", title="Effective length: four needles at the threshold"),
    plot_loss,
    plot_distances,
    partial(
        plot_means,
        frame="gains",
        value="score",
        x=Axis("middle", "distance of the evidence (tokens)", log=True),
        y_title="gain (nats)",
        title="Gain from evidence by its distance",
    ),
    partial(
        plot_means,
        frame="contexts",
        value="loss",
        x=Axis("context", "visible context (tokens, up to 2x)", log=True),
        y_title="held-out loss (nats)",
        title="Held-out loss by visible context",
    ),
    plot_frequency,
)
