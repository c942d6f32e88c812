"""The figures of a report, as Vega-Lite charts that can be hovered, zoomed and filtered by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eval.report.crossed import by_two_settings
from eval.report.curves import by_distance, by_length, by_needles
from eval.report.data import DEPTHS, Runs, folded
from eval.report.looks import Figure, axis, base, by_arm, interactive, look, of_arms, tips, words
from eval.report.reach import by_shift_and_window, reach_by_method

FEWEST_SEEDS = 3  # of which limits are drawn over tokens
MOST_BANDS = 6  # arms whose limits are drawn


def figures(runs: Runs) -> Iterator[Figure]:
    """Draw every figure that the runs have data for."""
    for draw in DRAWN:
        figure = draw(runs)
        if figure is not None:
            yield figure


def passing(runs: Runs) -> str:
    """Write in how many tests it must be found."""
    return "the threshold of each run" if runs.threshold is None else f"{runs.threshold:.0%} of the tests"


def growth(runs: Runs) -> Figure | None:
    """Reach against consumed tokens."""
    return over_tokens(runs, "reach", f"Reach: one number, {passing(runs)}", "growth")


def growth_of_length(runs: Runs) -> Figure | None:
    """Effective length against consumed tokens."""
    return over_tokens(runs, "effective_length", f"Effective length: four needles, {passing(runs)}", "effective_length")


def over_tokens(runs: Runs, value: str, title: str, name: str) -> Figure | None:
    """Draw a measure against consumed tokens: the mean of an arm, its runs as points."""
    import altair as alt

    rows = runs.probes.dropna(subset=[value])
    if rows.empty:
        return None
    rows = rows[["arm", "run", "probe", "tokens", value, f"f_at_{value}"]]
    at = rows.groupby(["arm", "probe"], sort=False)["tokens"].mean().reset_index()
    mean = folded(rows, ("arm", "probe"), value).merge(at, on=["arm", "probe"]).rename(columns={"count": "runs"})
    mean["low"] = mean["low"].clip(0)
    mean.loc[mean["runs"] < FEWEST_SEEDS, ["low", "high"]] = float("nan")  # of two they fill the figure
    x, y_title = axis("tokens", "consumed tokens", format="~s"), f"{words(value)} (tokens)"
    dots, lines = look("arm", runs.arms, "shape"), look("arm", runs.arms, "strokeDash", has_points=True)
    y = axis(value, y_title, y=True)
    points = base(rows).mark_point(filled=True, size=32, opacity=0.5).encode(x=x, y=y, tooltip=tips(rows), **dots)
    line = base(mean).mark_line(strokeWidth=2).encode(x=x, y=axis("mean", y_title, y=True), **lines)
    layers = [points, line]
    if len(runs.arms) <= MOST_BANDS:
        low = axis("low", y_title, y=True)
        band = base(mean).mark_area(opacity=0.12).encode(x=x, y=low, y2="high:Q", color=lines["color"])
        layers.append(band)  # the first layer decides how the legend looks
    return Figure(name, title, caption_of(runs, value), interactive(alt.layer(*layers)), "x")


def caption_of(runs: Runs, value: str) -> str:
    """Describe a figure over tokens, and how many probes it leaves out."""
    bands = f", with 95% limits of {FEWEST_SEEDS} and more" if len(runs.arms) <= MOST_BANDS else ""
    caption = (
        f"Points are runs; lines are means over seeds{bands}." if len(runs.runs) > 1 else "A point for each probe."
    )
    first = {"reach": "first_distance", "effective_length": "first_length"}[value]
    probed = runs.probes[runs.probes[value].notna() | runs.probes[first].notna()]
    missing = int(probed[value].isna().sum())
    if missing:
        verb = "has" if missing == 1 else "have"
        caption += f" {missing:,} of {len(probed):,} probes {verb} no value: the shortest {first[6:]} tested failed."
    return caption


def at_frequency(runs: Runs) -> Figure | None:
    """Reach against the position frequency there."""
    rows = runs.probes.dropna(subset=["reach", "f_at_reach"])[["arm", "run", "tokens", "reach", "f_at_reach"]]
    rows = rows[rows["f_at_reach"] > 0]
    if rows.empty:
        return None
    x = axis("f_at_reach", "position frequency f at the reach (pairs)", format="~s", log=True)
    y, arms = axis("reach", "reach (tokens)", y=True), look("arm", runs.arms, "shape")
    chart = base(rows).mark_point(filled=True, size=45, opacity=0.7).encode(x=x, y=y, tooltip=tips(rows), **arms)
    caption = "Every probe of every run. If f alone decided reach, all points would lie at one value of f."
    return Figure("reach_by_f", "Reach against f at the reach", caption, interactive(chart), "x", is_log=True)


def frequency(runs: Runs) -> Figure | None:
    """Position frequency by distance."""
    rows = runs.frequency.groupby(["arm", "i"], sort=False)["f"].mean().round().reset_index()
    rows = rows[rows["f"] > 0]
    if rows.empty:
        return None
    x = axis("i", "relative position i (tokens)")
    y = axis("f", "f(i), pairs", y=True, format="~s", log=True)
    arms = look("arm", runs.arms, "strokeDash")
    chart = base(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, tooltip=tips(rows), **arms)
    caption = "How often training used each relative position" + ("; means over seeds." if len(runs.runs) > 1 else ".")
    drawn = runs.frequency.groupby("run")["i"].agg(["size", "max"])
    thinned = drawn[drawn["size"] < drawn["max"]]
    if len(thinned):
        caption += f" Drawn at {thinned['size'].max()} of up to {thinned['max'].max():,} positions, equally spaced."
    return Figure("frequency", "Position frequency", caption, interactive(chart), "y", is_log=True)


def heat_map(runs: Runs) -> Figure | None:
    """Share of four needles found by length and depth (arXiv 2410.18745, Figure 4)."""
    import altair as alt

    if runs.needles.empty:
        return None
    groups = runs.needles.groupby(["arm", "length", "part"], sort=False)
    rows = groups.agg(share=("share", "mean"), needles=("n", "sum"), runs=("run", "nunique")).reset_index()
    rows["depth"] = [f"{100 * part // DEPTHS} to {100 * (part + 1) // DEPTHS}%" for part in rows["part"]]
    x = alt.X("length:O", title="length (tokens)", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    y = alt.Y("part:O", title="depth", axis=alt.Axis(labelExpr=f"datum.value * {100 // DEPTHS} + '%'"))
    color = alt.Color("share:Q", title="share found", scale=alt.Scale(domain=[0, 1], scheme="viridis"))
    shown = rows.drop(columns="part")
    cells = alt.Chart().mark_rect().encode(x=x, y=y, color=color, tooltip=tips(shown))
    caption = "The needles of each run's last probe, by the tenth of the text that hides them; depth 0% is the start."
    title = "Needles found by length and depth"
    return Figure("heat_map", title, caption + of_arms(runs.runs), by_arm(rows, [cells]))


def held_out_loss(runs: Runs) -> Figure | None:
    """Held-out loss against consumed tokens."""
    rows = runs.probes.dropna(subset=["held_out_loss"])[["arm", "run", "tokens", "held_out_loss"]]
    if rows.empty:
        return None
    x = axis("tokens", "consumed tokens", format="~s")
    y = axis("held_out_loss", "held-out loss (nats)", y=True, zero=False)
    arms = look("arm", runs.arms, "strokeDash")
    line = (
        base(rows)
        .mark_line(strokeWidth=1.3, opacity=0.8, point={"size": 14})
        .encode(x=x, y=y, detail="run:N", tooltip=tips(rows), **arms)
    )
    return Figure("loss", "Held-out loss", "A line for each run.", interactive(line), "x")


DRAWN: tuple[Callable[[Runs], Figure | None], ...] = (
    growth,
    growth_of_length,
    at_frequency,
    by_two_settings,
    reach_by_method,
    by_shift_and_window,
    by_distance,
    by_needles,
    by_length,
    heat_map,
    frequency,
    held_out_loss,
)
