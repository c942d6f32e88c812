"""The figures of a report, as Vega-Lite charts that can be hovered, zoomed and filtered by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd

from eval.report.data import Runs, folded

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#882255")  # Okabe and Ito, + 1
HEIGHT = 300
MOST_IN_LEGEND = 24
MOST_FACETS = 12


class Figure(NamedTuple):
    """One figure: its name in files, title, what it shows, and the chart.

    `log` is the axis that the reader can make logarithmic, and `is_log` whether it begins so.
    """

    name: str
    title: str
    caption: str
    chart: Any
    log: str = ""
    is_log: bool = False


def figures(runs: Runs, threshold: float) -> Iterator[Figure]:
    """Draw every figure that the runs have data for."""
    for draw in DRAWN:
        figure = draw(runs, threshold)
        if figure is not None:
            yield figure


def growth(runs: Runs, threshold: float) -> Figure | None:
    """Reach against consumed tokens."""
    return over_tokens(runs, "reach", f"Reach: one number in {threshold:.0%} of the tests", "growth")


def growth_of_length(runs: Runs, threshold: float) -> Figure | None:
    """Effective length against consumed tokens."""
    title = f"Effective length: four needles, {threshold:.0%} of the tests"
    return over_tokens(runs, "effective_length", title, "effective_length")


def over_tokens(runs: Runs, value: str, title: str, name: str) -> Figure | None:
    """Draw a measure against consumed tokens: the mean of an arm, its runs as points."""
    rows = runs.probes.dropna(subset=[value])[["arm", "run", "tokens", value, f"f_at_{value}"]]
    if rows.empty:
        return None
    mean = folded(rows, ("arm", "tokens"), value)
    x = axis("tokens:Q", "consumed tokens", format="~s")
    y = axis(f"{value}:Q", f"{words(value)} (tokens)")
    points = base(rows).mark_point(filled=True, size=28, opacity=0.55).encode(x=x, y=y, **arm(runs), tooltip=tips(rows))
    lines = base(mean).mark_line(strokeWidth=2.2).encode(x=x, y=axis("mean:Q", f"{words(value)} (tokens)"), **arm(runs))
    missing = int(runs.probes[value].isna().sum())
    caption = "Lines are the mean over seeds, points are runs."
    if missing:
        caption += f" {missing} of {len(runs.probes)} probes are left out: even the shortest tested fails."
    return Figure(name, title, caption, interactive(points + lines), "x")


def at_frequency(runs: Runs, threshold: float) -> Figure | None:
    """Reach against the position frequency there."""
    rows = runs.probes.dropna(subset=["reach", "f_at_reach"])[["arm", "run", "tokens", "reach", "f_at_reach"]]
    rows = rows[rows["f_at_reach"] > 0]
    if rows.empty:
        return None
    x = axis("f_at_reach:Q", "position frequency f at the reach (pairs)", format="~s", log=True)
    y = axis("reach:Q", "reach (tokens)")
    chart = base(rows).mark_point(filled=True, size=45, opacity=0.8).encode(x=x, y=y, **arm(runs), tooltip=tips(rows))
    caption = "Every probe of every run. On one curve, f alone would decide; apart, it does not."
    return Figure("reach_by_f", "Reach against f at the reach", caption, interactive(chart), "x", is_log=True)


def frequency(runs: Runs, threshold: float) -> Figure | None:
    """Position frequency by distance."""
    rows = runs.frequency.groupby(["arm", "i"], sort=False)["f"].mean().reset_index()
    rows = rows[rows["f"] > 0]
    if rows.empty:
        return None
    x, y = axis("i:Q", "relative position i (tokens)"), axis("f:Q", "f(i), pairs", format="~s", log=True)
    chart = base(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, **arm(runs), tooltip=tips(rows))
    caption = "How often each relative position was trained; the mean over seeds."
    return Figure("frequency", "Position frequency", caption, interactive(chart), "y", is_log=True)


def by_distance(runs: Runs, threshold: float) -> Figure | None:
    """Share found by distance under each position method."""
    return by_method(runs.distances, "distance", "distance of the number (tokens)", "share of numbers found", threshold)


def by_length(runs: Runs, threshold: float) -> Figure | None:
    """Share passed by length under each position method."""
    return by_method(runs.lengths, "length", "length (tokens)", "share of tests passed", threshold)


def by_method(rows: pd.DataFrame, x: str, x_title: str, title: str, threshold: float) -> Figure | None:
    """Draw a share against distance or length, methods in colour, arms side by side."""
    import altair as alt

    if rows.empty:
        return None
    mean = shares(rows, x)
    arms = list(dict.fromkeys(mean["arm"]))
    mean = mean[mean["arm"].isin(arms[:MOST_FACETS])]
    color = alt.Color("method:N", title="position method", scale=alt.Scale(range=list(COLORS)))
    shared = {"x": axis(f"{x}:Q", x_title), "color": color}
    share = alt.Y("share:Q", title=title, scale=alt.Scale(domain=[0, 1]))
    drawn = alt.Chart(mean)
    band = drawn.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=title), y2="high:Q", **shared)
    line = drawn.mark_line(strokeWidth=2, point={"size": 22}).encode(y=share, tooltip=tips(mean), **shared)
    rule = drawn.mark_rule(strokeDash=[4, 4], color="#888888").encode(y=alt.datum(threshold))
    chart = (band + line + rule).properties(width=260, height=170)
    facets = chart.facet(facet=alt.Facet("arm:N", title=None, sort=arms), columns=3)
    caption = "At each run's last probe. Bands: 95% limits over seeds; of one run, exact limits of its tests."
    if len(arms) > MOST_FACETS:
        caption += f" The first {MOST_FACETS} of {len(arms)} arms; the table has all."
    return Figure(f"by_{x}", f"{title.capitalize()} by {x}", caption, facets)


def shares(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """Fold seeds: the mean share with limits over seeds; of one run, the limits of its tests."""
    mean = folded(rows, ("arm", "method", x), "score").rename(columns={"mean": "share", "count": "runs"})
    one = rows.groupby(["arm", "method", x], sort=False)[["low", "high", "f", "n"]].first().reset_index()
    alone = mean["runs"] == 1
    mean.loc[alone, ["low", "high"]] = one.loc[alone, ["low", "high"]].to_numpy()
    mean["low"], mean["high"] = mean["low"].clip(0, 1), mean["high"].clip(0, 1)
    return mean.drop(columns="std").assign(f=one["f"], tests=one["n"])


def held_out_loss(runs: Runs, threshold: float) -> Figure | None:
    """Held-out loss against consumed tokens."""
    rows = runs.probes.dropna(subset=["held_out_loss"])[["arm", "run", "tokens", "held_out_loss"]]
    if rows.empty:
        return None
    x, y = axis("tokens:Q", "consumed tokens", format="~s"), axis("held_out_loss:Q", "held-out loss (nats)", zero=False)
    line = base(rows).mark_line(strokeWidth=1.3).encode(x=x, y=y, detail="run:N", **arm(runs), tooltip=tips(rows))
    return Figure("loss", "Held-out loss", "A line for each run.", interactive(line), "x")


DRAWN: tuple[Callable[[Runs, float], Figure | None], ...] = (
    growth,
    growth_of_length,
    at_frequency,
    by_distance,
    by_length,
    frequency,
    held_out_loss,
)


def base(rows: pd.DataFrame) -> Any:
    """Begin a chart whose rows are those of the runs picked on the page."""
    import altair as alt

    pick = alt.param(name="pick", value="")
    chosen = "pick === '' || test(regexp(pick, 'i'), datum.arm + ' ' + (datum.run || ''))"
    return alt.Chart(rows).add_params(pick).transform_filter(chosen)


def arm(runs: Runs) -> dict[str, Any]:
    """Color by arm, the same in every figure; a point of the legend hides the others."""
    import altair as alt

    arms = runs.arms
    colors = [COLORS[k % len(COLORS)] for k in range(len(arms))]
    legend = alt.Legend(title=None, symbolLimit=MOST_IN_LEGEND, labelLimit=320, orient="bottom", columns=2)
    scale = alt.Scale(domain=arms, range=colors)
    return {"color": alt.Color("arm:N", scale=scale, legend=legend if len(arms) > 1 else None)}


def axis(field: str, title: str, *, log: bool = False, zero: bool = True, **options: Any) -> Any:
    """Describe one axis; `field` is a column and its type."""
    import altair as alt

    scale = alt.Scale(type="log") if log else alt.Scale(zero=zero)
    kind = alt.Y if field.startswith(("reach:", "mean:", "f:", "effective_length:", "held_out_loss:")) else alt.X
    return kind(field, title=title, scale=scale, axis=alt.Axis(**options))


def tips(rows: pd.DataFrame) -> list[Any]:
    """Show the filled columns of a row when it is pointed at."""
    import altair as alt

    filled = [name for name in rows.columns if rows[name].notna().any()]
    numbers = {name for name in filled if pd.api.types.is_numeric_dtype(rows[name])}
    return [
        alt.Tooltip(name, format=",.4~g") if name in numbers else alt.Tooltip(name, type="nominal") for name in filled
    ]


def interactive(chart: Any) -> Any:
    """Let a chart be zoomed and dragged; its width is the page's."""
    return chart.properties(width="container", height=HEIGHT).interactive()


def words(name: str) -> str:
    """Write a column's name as words."""
    return name.replace("_", " ")
