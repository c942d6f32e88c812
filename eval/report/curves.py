"""Figures of the share found or passed by distance or length, arms side by side."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from eval.report.data import Runs, shares
from eval.report.looks import Figure, axis, by_arm, look, of_arms, of_first_arms, tips

MOST_METHODS = 8  # that are drawn in one panel
DISTANCE, FOUND = "distance of the number (tokens)", "share of numbers found"
LIMITS = "At each run's last probe. Bands are 95% limits: over seeds, or of the tests where an arm has one run."


def by_distance(runs: Runs) -> Figure | None:
    """Share found by distance under each position method."""
    return by_method(runs, runs.distances, "distance", DISTANCE, FOUND)


def by_length(runs: Runs) -> Figure | None:
    """Share passed by length under each position method."""
    return by_method(runs, runs.lengths, "length", "length (tokens)", "share of tests passed")


def by_method(runs: Runs, rows: pd.DataFrame, x: str, x_title: str, title: str) -> Figure | None:
    """Draw a share against distance or length: methods in colour, arms side by side."""
    chosen = farthest(runs, rows)
    mean = shares(rows[rows["method"].isin(chosen)], x)
    if mean.empty:
        return None
    shown = of_first_arms(mean)
    looks: dict[str, Any] = {"values": runs.methods, "listed": chosen, "title": "position method"}
    layers = share_layers(shown, axis(x, x_title), title, runs.threshold, "method", looks)
    caption = LIMITS + level(runs) + of_arms(mean)
    settings = rows["method"].nunique()
    if settings > len(chosen):
        caption += f" Of {settings} settings, the one of each method that reaches farthest; the tables hold the others."
    return Figure(f"by_{x}", f"{title.capitalize()} by {x}", caption, by_arm(shown, layers))


def farthest(runs: Runs, rows: pd.DataFrame) -> list[str]:
    """Choose the methods to draw: all, or of many the setting of each that has the longest mean reach."""
    present = set(rows["method"])
    names = [name for name in runs.methods if name in present]
    if len(names) <= MOST_METHODS:
        return names
    reach = runs.reaches.assign(reach=runs.reaches["reach"].astype(float).fillna(0)).groupby("method")["reach"].mean()
    best: dict[str, str] = {}
    for name in names:
        family = re.sub(r"\([^)]*\)", "", name)
        if family not in best or reach.get(name, 0) > reach.get(best[family], 0):
            best[family] = name
    return list(best.values())


def by_needles(runs: Runs) -> Figure | None:
    """Share found by distance, of one number in a test and of several, under the method of training."""
    mean = needle_shares(runs)
    if mean.empty:
        return None
    shown, kinds = of_first_arms(mean), list(dict.fromkeys(mean["tests"]))
    looks: dict[str, Any] = {"values": kinds, "title": None}
    layers = share_layers(shown, axis("distance", DISTANCE), FOUND, runs.threshold, "tests", looks)
    caption = f"{LIMITS} Those of several numbers in a test come from resampling whole tests.{level(runs)}"
    chart = by_arm(shown, layers)
    return Figure("by_needles", "One number in a test and several", caption + of_arms(mean), chart)


def needle_shares(runs: Runs) -> pd.DataFrame:
    """Fold the tests of several numbers, and the tests of one number of the same runs and methods."""
    several = runs.several
    one = runs.distances.merge(several[["run", "method"]].drop_duplicates(), on=["run", "method"])
    sizes = {f"{n:g} numbers" for n in several["needles"].dropna()}
    together = f"{sizes.pop() if len(sizes) == 1 else 'several numbers'} in a test"
    kinds = ((one, "one number in a test"), (several.assign(f=np.nan), together))
    frames = [shares(rows, "distance").rename(columns={"tests": "n"}).assign(tests=tests) for rows, tests in kinds]
    filled = [frame for frame in frames if not frame.empty]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


def level(runs: Runs) -> str:
    """Describe the line of the threshold."""
    return "" if runs.threshold is None else " The dashed level is the threshold."


def share_layers(
    shown: pd.DataFrame, at: Any, title: str, threshold: float | None, field: str, looks: dict[str, Any]
) -> list[Any]:
    """Draw shares with their limits: points, lines and bands, a look for each value of a field."""
    import altair as alt

    share = alt.Y("share:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5))
    points, lines = look(field, kind="shape", **looks), look(field, kind="strokeDash", has_points=True, **looks)
    chart, low = alt.Chart(), alt.Y("low:Q", title=title)
    layers = [
        chart.mark_point(filled=True, size=36, opacity=0.9).encode(x=at, y=share, tooltip=tips(shown), **points),
        chart.mark_line(strokeWidth=1.8).encode(x=at, y=share, **lines),
        chart.mark_area(opacity=0.13).encode(x=at, y=low, y2="high:Q", color=lines["color"]),
    ]
    if threshold is not None:
        layers.append(alt.Chart().mark_rule(strokeDash=[4, 4], color="#888888").encode(y=alt.datum(threshold)))
    return layers
