"""The figure of two settings that are crossed: reach by one, in the colours of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from eval.report.data import REACH, Runs
from eval.report.looks import COLORS, DASHES, HEIGHT, Figure, axis, finished, picked, scale
from eval.report.reach import BELOW, reach_marks, reach_points
from eval.report.reading import Row
from eval.report.tables import text_of
from lab.train.arms import differing


def by_two_settings(runs: Runs) -> Figure | None:
    """Reach by two crossed settings, where the arms differ in nothing else."""
    import altair as alt

    pair = crossed(runs.settings)
    if pair is None:
        return None
    short = [key.split(".")[-1] for key in pair]
    along, beside = short if len({*short}) == 2 else [key.replace(".", " ") for key in pair]
    points = crossed_points(runs, {along: pair[0], beside: pair[1]})
    if points.empty:
        return None
    values = {name: [*dict.fromkeys(points[name])] for name in (along, beside)}
    x = alt.X(f"{along}:O", title=pair[0], sort=values[along], axis=alt.Axis(labelAngle=0))
    sides = {"x": x, "xOffset": alt.XOffset(f"{beside}:N", sort=values[beside])}
    legend = alt.Legend(title=pair[1], symbolType="square", symbolOpacity=1, symbolStrokeWidth=0)
    colors = {"shorthand": f"{beside}:N", "scale": scale(values[beside], COLORS), "legend": legend}
    y, limits = axis("reach", "reach (tokens)", y=True), {"y": alt.Y("low:Q"), "y2": "high:Q"}
    dash = alt.StrokeDash(f"{beside}:N", scale=scale(values[beside], DASHES), legend=None)
    line = alt.Chart().mark_line(strokeWidth=1.4, opacity=0.7).transform_filter(alt.datum.outcome != BELOW)
    lines = line.encode(**sides, y=y, color=alt.Color(**colors), strokeDash=dash)
    layers = [*reach_marks(points, {**sides, "y": y}, colors, limits), lines]
    caption = (
        "Plain reach at each run's last probe: means over seeds with 95% limits, or one run with its tests' limits."
    )
    others = [key for key in differing(runs.settings) if key not in pair]
    if others:
        caption += f" Settings that change with these two: {', '.join(others)}."
    chart: Any = alt.layer(*layers, data=points).properties(width="container", height=HEIGHT)
    return Figure("crossed", f"Reach by {along} and {beside}", caption, finished(picked(chart)))


def crossed(settings: Mapping[str, Row]) -> tuple[str, str] | None:
    """Return the two settings that runs differ in if every value of one meets every value of the other, or None.

    The first is the one with more values.
    """
    free = free_settings(settings)
    if len(free) != 2:
        return None
    (first, left), (second, right) = free.items()
    return (first, second) if len({*zip(left, right, strict=True)}) == len({*left}) * len({*right}) else None


def free_settings(settings: Mapping[str, Row]) -> dict[str, list[str]]:
    """Return the values of the settings that tell arms apart, without those that another one decides.

    Example:
        >>> sizes = [{"window": 96, "end": 128}, {"window": 192, "end": 256}, {"window": 200, "end": 256}]
        >>> free_settings({str(number): row for number, row in enumerate(sizes)})
        {'window': ['96', '192', '200']}
    """
    values = {key: [str(each.get(key)) for each in settings.values()] for key in differing(settings)}
    free: dict[str, list[str]] = {}
    for key in sorted(values, key=lambda key: -len({*values[key]})):
        if not any(decides(other, values[key]) for other in free.values()):
            free[key] = values[key]
    return free


def decides(left: Sequence[str], right: Sequence[str]) -> bool:
    """Return whether every value on the left has one on the right."""
    return len({*zip(left, right, strict=True)}) == len({*left})


def crossed_points(runs: Runs, keys: Mapping[str, str]) -> pd.DataFrame:
    """Fold the reach of runs by two settings, in the order of their values; `keys` are the settings by column."""
    rows = runs.runs[["run", "arm", *REACH]]
    own = {name: [runs.settings[run].get(key) for run in rows["run"]] for name, key in keys.items()}
    order = sorted(range(len(rows)), key=lambda row: [rank(values[row]) for values in own.values()])
    texts = {name: [text_of(value) if value is not None else "none" for value in each] for name, each in own.items()}
    return reach_points(rows.assign(**texts).iloc[order], [*keys, "arm"])


def rank(value: Any) -> tuple[bool, float, str]:
    """Return what to sort the values of a setting by, numbers first."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)
