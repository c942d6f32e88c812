"""Figures of reach under position methods (arXiv 2410.18745, Table 1 and Figure 7).

A reach can lie outside the distances tested: nowhere if the first distance fails, and beyond the last if that passes.
Both have marks of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from eval.report.data import Runs, at_end
from eval.report.looks import COLORS, Figure, axis, by_arm, of_arms, of_first_arms, scale, tips
from eval.report.reading import Row
from lab.train.arms import mean_with_limits

MEASURED, BEYOND, BELOW = "reach", "at least: last distance passed", "none: first distance failed"
HOLLOW = "M-1.1,0L.9,-1.1L.9,1.1ZM-.55,0L.65,.65L.65,-.65Z"  # a triangle to the left with a hole
OUTCOMES = {MEASURED: "circle", BEYOND: "triangle-right", BELOW: HOLLOW}
STRING = re.compile(r"string\(shift=(\d+)(?:,window=(\d+))?\)")
DEFAULT_WINDOW = 128  # of STRING, which names of methods leave out
BRIGHT = 0.435  # part of the viridis scale above which black has more contrast than white (WCAG 2)
BEYOND_LAST = 1.05  # of the last distance that was tested, where limits are cut off
ROW, CELL, NAMES = 22, 34, 240  # pixels: heights, and the width of the names of methods


def reach_points(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Fold the runs of each group: a row for the mean reach, and one at the first distance for runs that failed there.

    Limits are over seeds; of one run, those of its tests, which end at the first and last distance.
    """
    tested = rows[rows["reach"].notna() | rows["first_distance"].notna()]
    points = [
        dict(zip(by, key, strict=True)) | point
        for key, group in tested.groupby(by, sort=False)
        for point in points_of(group)
    ]
    return pd.DataFrame(points, columns=[*by, "reach", "low", "high", "runs", "outcome"])


def points_of(group: pd.DataFrame) -> Iterator[Row]:
    """Describe the runs of a group that have a reach, and those that have none."""
    found, failed = group.dropna(subset=["reach"]), group[group["reach"].isna()]
    if len(found):
        mean, *over_seeds = mean_with_limits(found["reach"].astype(float).tolist())
        low, high = over_seeds if len(found) > 1 else limits_of(found.iloc[0])
        outcome = BEYOND if at_end(found).any() else MEASURED
        yield {"reach": mean, "low": np.maximum(low, 0), "high": high, "runs": len(found), "outcome": outcome}
    if len(failed):
        low, high = (np.nan, np.nan) if len(failed) > 1 else limits_of(failed.iloc[0])
        first = failed["first_distance"].mean()
        yield {"reach": first, "low": low, "high": high, "runs": len(failed), "outcome": BELOW}


def limits_of(run: pd.Series) -> tuple[float, float]:
    """Return the limits of one run's tests."""
    low = run["first_distance"] if pd.isna(run["reach_low"]) else run["reach_low"]
    high = run["last_distance"] if pd.isna(run["reach_high"]) else run["reach_high"]
    return low, high


def reach_marks(points: pd.DataFrame, sides: Row, colors: Row, limits: Row) -> list[Any]:
    """Draw limits as rules, and a reach by a mark whose shape is its outcome.

    `sides` are the channels x and y of a mark, `limits` those of its limits, `colors` the options of its colour.
    """
    import altair as alt

    legend = alt.Legend(title=None, symbolFillColor="#888888", symbolStrokeWidth=0, columns=1)
    shape = alt.Shape("outcome:N", scale=scale([*OUTCOMES], [*OUTCOMES.values()]), legend=legend)
    marks, rules = (
        alt.Chart().mark_point(filled=True, size=80, opacity=1),
        alt.Chart().mark_rule(strokeWidth=1.6, clip=True),
    )
    return [
        rules.encode(**{**sides, **limits}, color=alt.Color(**colors), opacity=alt.value(0.6)),
        marks.encode(**sides, shape=shape, color=alt.Color(**colors), tooltip=tips(points)),
    ]


def reach_by_method(runs: Runs) -> Figure | None:
    """Reach under each position method."""
    import altair as alt

    points = reach_points(runs.reaches, ["arm", "method"])
    if points["method"].nunique() < 2:
        return None
    shown = of_first_arms(points)
    present = set(shown["method"])
    names = alt.Axis(labelLimit=NAMES, grid=True, domain=False, ticks=False)
    y = alt.Y("method:N", title=None, sort=[name for name in runs.methods if name in present], axis=names)
    colors = {"shorthand": "method:N", "scale": scale(runs.methods, COLORS), "legend": None}
    limits = {"x": alt.X("low:Q"), "x2": "high:Q"}
    end = farthest(runs.reaches) * BEYOND_LAST
    layers = reach_marks(shown, {"x": axis("reach", "reach (tokens)", end=end), "y": y}, colors, limits)
    caption = "At each run's last probe: means over seeds with 95% limits, or one run with the limits of its tests."
    chart = by_arm(shown, layers, height=ROW * len(present), left=NAMES + 5)
    return Figure("reach_by_method", "Reach under each position method", caption + of_arms(points), chart)


def farthest(reaches: pd.DataFrame) -> float:
    """Find the last distance tested; the farthest reach or 1, where no record names one, as without training's own."""
    known = [pd.to_numeric(reaches[name]).max() for name in ("last_distance", "reach_high", "reach") if name in reaches]
    return float(next((value for value in known if not np.isnan(value)), 1.0))


def by_shift_and_window(runs: Runs) -> Figure | None:
    """Reach by the shift and window of STRING, for the arms with at least two of each."""
    import altair as alt

    cells = string_cells(runs.reaches)
    if cells.empty:
        return None
    shown = of_first_arms(cells)
    x = alt.X("shift:O", title="shift S", axis=alt.Axis(labelAngle=0))
    y = alt.Y("window:O", title="window W", sort="descending")
    most = farthest(runs.reaches)
    color = alt.Color("reach:Q", title="reach (tokens)", scale=alt.Scale(domain=[0, most], scheme="viridis"))
    ink = alt.condition(alt.datum.reach > BRIGHT * most, alt.value("black"), alt.value("white"))
    layers = [
        alt.Chart().mark_rect().encode(x=x, y=y, color=color, tooltip=tips(shown.drop(columns="text"))),
        alt.Chart().mark_text(fontSize=11).encode(x=x, y=y, text="text:N", color=ink),
    ]
    caption = (
        "Means over seeds at the last probe, in tokens. + a run reaches the last distance tested; < all runs fail "
    )
    caption += "at the first; * without the runs that fail there."
    chart = by_arm(shown, layers, height=CELL * max(3, shown["window"].nunique()))
    return Figure("shift_and_window", "Reach by STRING's shift and window", caption + of_arms(cells), chart)


def string_cells(reaches: pd.DataFrame) -> pd.DataFrame:
    """Fold the runs of an arm by shift and window, with the text of each cell.

    Example:
        >>> row = {"arm": "all", "run": "a", "reach": 120.4, "first_distance": 32, "last_distance": 168}
        >>> names = [f"string(shift={shift},window={window})" for shift in (64, 96) for window in (16, 32)]
        >>> rows = pd.DataFrame([row | {"method": name, "reach_low": None, "reach_high": None} for name in names])
        >>> string_cells(rows)[["shift", "window", "text"]].values.tolist()[:2]
        [[64, 16, '120'], [64, 32, '120']]
    """
    settings = reaches["method"].map(lambda name: STRING.fullmatch(str(name)))
    rows = reaches[settings.notna()]
    found = [(int(match[1]), int(match[2] or DEFAULT_WINDOW)) for match in settings.dropna()]
    rows = rows.assign(shift=[shift for shift, _ in found], window=[window for _, window in found])
    by = ["arm", "shift", "window"]
    sizes = rows.groupby("arm")[["shift", "window"]].transform("nunique")
    rows = rows[(sizes >= 2).all(axis="columns")]
    points = reach_points(rows, by)
    cells = [{**dict(zip(by, key, strict=True)), **cell_of(group)} for key, group in points.groupby(by, sort=False)]
    return pd.DataFrame(cells, columns=[*by, "reach", "runs", "failed", "text"])


def cell_of(points: pd.DataFrame) -> Row:
    """Describe one or both points of a cell: the mean of the runs with a reach, and how many have none."""
    found, failed = points[points["outcome"] != BELOW], points[points["outcome"] == BELOW]
    none = int(failed["runs"].sum())
    if found.empty:
        first = float(failed["reach"].iloc[0])
        return {"reach": first, "runs": none, "failed": none, "text": f"<{first:,.0f}"}
    mean, outcome, n = (found[name].iloc[0] for name in ("reach", "outcome", "runs"))
    text = f"{mean:,.0f}{'+' if outcome == BEYOND else ''}{'*' if none else ''}"
    return {"reach": mean, "runs": int(n) + none, "failed": none, "text": text}
