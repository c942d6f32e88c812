"""The figures of a report: charts that can be pointed at, zoomed and filtered by run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from eval.report.data import BELOW, BEYOND, Row, Runs, farthest, folded, reach_points, shares
from lab.counts.demand import F
from lab.draw import NAMES, Rule, draw, layer, words

FEWEST_SEEDS = 3  # of which limits are drawn over tokens
MOST_BANDS = 6  # arms whose limits are drawn
MOST_METHODS = 8  # that are drawn in one panel
STRING = r"^string\(shift=(?P<shift>\d+)(?:,window=(?P<window>\d+))?\)$"
DEFAULT_WINDOW = 128  # of STRING, which names of methods leave out
BEYOND_LAST = 1.05  # of the last distance that was tested, where limits are cut off
FACET: dict[str, Any] = {"width": 240, "height": 160}
ROW = 22  # pixels: height of a method's row
CELL = 34  # and of a window's
LIMITS = "At each run's last probe. Bands are 95% limits: over seeds, or of the tests where an arm has one run."


class Figure(NamedTuple):
    """One figure: its name in files, title, what it shows, and the chart.

    `log` is the axis that the reader can make logarithmic; y begins so. Of arms side by side the y axis takes `left`
    pixels.
    """

    name: str
    title: str
    caption: str
    chart: Any
    log: str = ""
    left: int = 70


def by_arm(runs: Runs, rows: pd.DataFrame, x: str, y: str, series: str, **options: Any) -> Any:
    """Draw a chart for each arm side by side."""
    arms = [arm for arm in runs.arms if arm in set(rows["arm"])]
    facets = {"facet": "arm", **FACET} if len(arms) > 1 else {}
    shown = rows.set_index("arm").loc[arms].reset_index()
    return draw(shown, x, y, series, **{**facets, **options})


def over_tokens(runs: Runs, *, value: str, what: str, name: str) -> Figure | None:
    """Draw a measure against consumed tokens: the mean of an arm, its runs as points."""
    rows = runs.probes.dropna(subset=[value])
    if rows.empty:
        return None
    rows = rows[["arm", "run", "probe", "tokens", value, f"f_at_{value}"]]
    at = rows.groupby(["arm", "probe"], sort=False)["tokens"].mean().reset_index()
    mean = folded(rows, ["arm", "probe"], value).merge(at, on=["arm", "probe"]).rename(columns={"count": "runs"})
    mean["low"] = mean["low"].clip(0)
    mean.loc[mean["runs"] < FEWEST_SEEDS, ["low", "high"]] = float("nan")  # of two they fill the figure
    has_bands = len(runs.arms) <= MOST_BANDS
    names: dict[str, Any] = {"names": runs.arms, "x_title": "consumed tokens", "y_title": f"{words(value)} (tokens)"}
    limits: dict[str, Any] = {"low": "low", "high": "high"} if has_bands else {}
    line = draw(mean, "tokens", "mean", "arm", marks=False, **limits, **names)
    points = draw(rows, "tokens", value, "arm", kind="point", legend=False, **names)
    bands = f", with 95% limits of {FEWEST_SEEDS} and more" if has_bands else ""
    means = f"Points are runs; lines are means over seeds{bands}."
    caption = means if len(runs.runs) > 1 else "A point for each probe."
    caption += " A probe that fails at the shortest distance or length has no point."
    passing = "the threshold of each run" if runs.threshold is None else f"{runs.threshold:.0%} of the tests"
    return Figure(name, f"{what}, {passing}", caption, layer(line, points), "x")


def reach_by_method(runs: Runs) -> Figure | None:
    """Draw reach under each position method (arXiv 2410.18745, Table 1)."""
    points = reach_points(runs.reaches, ["arm", "method"])
    methods = [name for name in runs.methods if name in set(points["method"])]
    if len(methods) < 2:
        return None
    points = points.set_index("method").loc[methods].reset_index()
    points["high"] = points["high"].clip(upper=farthest(runs.reaches) * BEYOND_LAST)
    looks: dict[str, Any] = {"shape": "outcome", "legend": False, "names": runs.methods, "low": "low", "high": "high"}
    looks |= {"x_title": "reach (tokens)", "y_title": ""}
    chart = by_arm(runs, points, "reach", "method", "method", kind="point", height=ROW * len(methods), **looks)
    caption = "At each run's last probe: means over seeds with 95% limits, or one run with the limits of its tests."
    title = "Reach under each position method"
    return Figure("reach_by_method", title, caption, chart, left=NAMES)


def by_shift_and_window(runs: Runs) -> Figure | None:
    """Draw reach by the shift and window of STRING, for the arms with at least two of each (its Figure 7)."""
    cells = string_cells(runs.reaches)
    if cells.empty:
        return None
    cells = cells.sort_values("shift", kind="stable").sort_values("window", ascending=False, kind="stable")
    looks: dict[str, Any] = {"kind": "heat", "text": "text", "x_title": "shift S", "y_title": "window W"}
    height = CELL * max(3, cells["window"].nunique())
    chart = by_arm(runs, cells, "shift", "window", "reach", height=height, **looks)
    caption = "Means over seeds at the last probe, in tokens. + a run reaches the last distance tested;"
    caption += " < all runs fail at the first; * without the runs that fail there."
    return Figure("shift_and_window", "Reach by STRING's shift and window", caption, chart)


def string_cells(reaches: pd.DataFrame) -> pd.DataFrame:
    """Fold the runs of an arm by shift and window, with the text of each cell.

    Example:
        >>> row = {"arm": "all", "run": "a", "reach": 120.4, "first_distance": 32, "last_distance": 168}
        >>> names = [f"string(shift={shift},window={window})" for shift in (64, 96) for window in (16, 32)]
        >>> rows = pd.DataFrame([row | {"method": name, "reach_low": None, "reach_high": None} for name in names])
        >>> string_cells(rows)[["shift", "window", "text"]].values.tolist()[:2]
        [[64, 16, '120'], [64, 32, '120']]
    """
    found = reaches["method"].astype(str).str.extract(STRING).dropna(subset=["shift"])
    rows = reaches.join(found.fillna(str(DEFAULT_WINDOW)).astype(int), how="inner")
    sizes = rows.groupby("arm")[["shift", "window"]].transform("nunique")
    by = ["arm", "shift", "window"]
    points = reach_points(rows[(sizes >= 2).all(axis="columns")], by)
    cells = [{**dict(zip(by, key, strict=True)), **cell_of(group)} for key, group in points.groupby(by, sort=False)]
    return pd.DataFrame(cells, columns=[*by, "reach", "runs", "failed", "text"])


def cell_of(points: pd.DataFrame) -> Row:
    """Describe one or both points of a cell: the mean of the runs with a reach, and how many have none."""
    found = points[points["outcome"] != BELOW]
    failed = points[points["outcome"] == BELOW]
    none = int(failed["runs"].sum())
    if found.empty:
        first = float(failed["reach"].iloc[0])
        return {"reach": first, "runs": none, "failed": none, "text": f"<{first:,.0f}"}
    mean, outcome, n = (found[name].iloc[0] for name in ("reach", "outcome", "runs"))
    text = f"{mean:,.0f}{'+' if outcome == BEYOND else ''}{'*' if none else ''}"
    return {"reach": mean, "runs": int(n) + none, "failed": none, "text": text}


def by_distance(runs: Runs) -> Figure | None:
    """Draw the share of numbers found against distance: methods in colour, arms side by side."""
    rows = runs.distances
    reach = runs.reaches.assign(reach=runs.reaches["reach"].astype(float)).groupby("method")["reach"].mean()
    chosen = sorted({*rows["method"]}, key=lambda name: -reach.fillna(0).get(name, 0))[:MOST_METHODS]
    mean = shares(rows[rows["method"].isin(chosen)])
    if mean.empty:
        return None
    looks: dict[str, Any] = {"names": runs.methods, "legend": [name for name in runs.methods if name in chosen]}
    looks |= {"low": "low", "high": "high", "y_limits": (0, 1)}
    looks |= {"x_title": "distance of the number (tokens)", "y_title": "share of numbers found"}
    looks["rules"] = [] if runs.threshold is None else [Rule("y", runs.threshold)]
    chart = by_arm(runs, mean, "distance", "share", "method", **looks)
    caption = LIMITS + ("" if runs.threshold is None else " The dashed level is the threshold.")
    settings = rows["method"].nunique()
    if settings > len(chosen):
        caption += f" Of {settings} settings, the {MOST_METHODS} that reach farthest; the tables hold the others."
    return Figure("by_distance", "Share of numbers found by distance", caption, chart)


def frequency(runs: Runs) -> Figure | None:
    """Draw the position frequency, and beside it the demand, by distance."""
    by = ["profile", "arm", "distance"]
    rows = runs.frequency.groupby(by, sort=False)["per distance"].mean().reset_index()
    if rows.empty:
        return None
    demanded = rows["profile"].nunique() > 1
    looks: dict[str, Any] = {"names": runs.arms, "log_x": True, "log_y": True, "marks": False}
    looks |= {"facet": "profile", "width": 380, "height": 240} if demanded else {"y_title": F}
    chart = draw(rows, "distance", "per distance", "arm", x_title="distance (tokens)", **looks)
    caption = "How often training used each relative position"
    caption += ", and how many targets have their nearest evidence at each distance" if demanded else ""
    caption += "; means over seeds." if len(runs.runs) > 1 else "."
    return Figure("frequency", "Position frequency" + " and demand" * demanded, caption, chart)


DRAWN: tuple[Callable[[Runs], Figure | None], ...] = (
    partial(over_tokens, value="reach", what="Reach: one number", name="growth"),
    partial(over_tokens, value="effective_length", what="Effective length: four needles", name="effective_length"),
    reach_by_method,
    by_shift_and_window,
    by_distance,
    frequency,
)
