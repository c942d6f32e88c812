"""The figures of a report: charts that can be pointed at, zoomed and filtered by run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from eval.report.data import (
    BELOW,
    BEYOND,
    Runs,
    farthest,
    folded,
    reach_points,
    shares,
)
from eval.report.reading import Row
from lab.draw import NAMES, Rule, draw, layer, words

MOST_FACETS = 12  # arms side by side
FEWEST_SEEDS = 3  # of which limits are drawn over tokens
MOST_BANDS = 6  # arms whose limits are drawn
MOST_METHODS = 8  # that are drawn in one panel
STRING = re.compile(r"string\(shift=(\d+)(?:,window=(\d+))?\)")
DEFAULT_WINDOW = 128  # of STRING, which names of methods leave out
BEYOND_LAST = 1.05  # of the last distance that was tested, where limits are cut off
FACET: dict[str, Any] = {"width": 240, "height": 160}
ROW, CELL = 22, 34  # pixels: heights of a method's row, and of a window's
LIMITS = "At each run's last probe. Bands are 95% limits: over seeds, or of the tests where an arm has one run."


class Figure(NamedTuple):
    """One figure: its name in files, title, what it shows, and the chart.

    `log` is the axis that the reader can make logarithmic, and `is_log` whether it begins so. `arms` are side by side,
    whose y axis takes `left` pixels.
    """

    name: str
    title: str
    caption: str
    chart: Any
    log: str = ""
    is_log: bool = False
    arms: int = 1
    left: int = 70


def figures(runs: Runs) -> Iterator[Figure]:
    """Draw every figure that the runs have data for."""
    for each in DRAWN:
        figure = each(runs)
        if figure is not None:
            yield figure


def by_arm(
    runs: Runs, rows: pd.DataFrame, x: str, y: str, series: str, *, height: int | None = None, **options: Any
) -> tuple[Any, int]:
    """Draw a chart for each of the first arms side by side, and one of a single arm as wide as others."""
    present = set(rows["arm"])
    arms = [arm for arm in runs.arms if arm in present][:MOST_FACETS]
    size: dict[str, Any] = dict(FACET) if len(arms) > 1 else {}
    if height is not None:
        size["height"] = height
    shown = rows.set_index("arm").loc[arms].reset_index()
    return draw(shown, x, y, series, facet="arm" if len(arms) > 1 else None, **options, **size), len(arms)


def of_arms(rows: pd.DataFrame) -> str:
    """Note that not all arms are drawn."""
    arms = rows["arm"].nunique()
    return f" The first {MOST_FACETS} of {arms} arms; the tables hold the others." if arms > MOST_FACETS else ""


def over_tokens(runs: Runs, *, value: str, what: str, name: str) -> Figure | None:
    """Draw a measure against consumed tokens: the mean of an arm, its runs as points."""
    rows = runs.probes.dropna(subset=[value])
    if rows.empty:
        return None
    rows = rows[["arm", "run", "probe", "tokens", value, f"f_at_{value}"]]
    at = rows.groupby(["arm", "probe"], sort=False)["tokens"].mean().reset_index()
    mean = folded(rows, ("arm", "probe"), value).merge(at, on=["arm", "probe"]).rename(columns={"count": "runs"})
    mean["low"] = mean["low"].clip(0)
    mean.loc[mean["runs"] < FEWEST_SEEDS, ["low", "high"]] = float("nan")  # of two they fill the figure
    has_bands = len(runs.arms) <= MOST_BANDS
    names: dict[str, Any] = {"names": runs.arms, "x_title": "consumed tokens", "y_title": f"{words(value)} (tokens)"}
    limits: dict[str, Any] = {"low": "low", "high": "high"} if has_bands else {}
    line = draw(mean, "tokens", "mean", "arm", marks=False, **limits, **names)
    points = draw(rows, "tokens", value, "arm", kind="point", legend=False, **names)
    bands = f", with 95% limits of {FEWEST_SEEDS} and more" if has_bands else ""
    caption = (
        f"Points are runs; lines are means over seeds{bands}." if len(runs.runs) > 1 else "A point for each probe."
    )
    first = {"reach": "first_distance", "effective_length": "first_length"}[value]
    probed = runs.probes[runs.probes[value].notna() | runs.probes[first].notna()]
    missing = int(probed[value].isna().sum())
    if missing:
        verb = "has" if missing == 1 else "have"
        caption += f" {missing:,} of {len(probed):,} probes {verb} no value: the shortest {first[6:]} tested failed."
    passing = "the threshold of each run" if runs.threshold is None else f"{runs.threshold:.0%} of the tests"
    return Figure(name, f"{what}, {passing}", caption, layer(line, points), "x")


def at_frequency(runs: Runs) -> Figure | None:
    """Draw reach against the position frequency there."""
    rows = runs.probes.dropna(subset=["reach", "f_at_reach"])[["arm", "run", "tokens", "reach", "f_at_reach"]]
    rows = rows[rows["f_at_reach"] > 0]
    if rows.empty:
        return None
    titles: dict[str, Any] = {"x_title": "position frequency f at the reach (pairs)", "y_title": "reach (tokens)"}
    chart = draw(rows, "f_at_reach", "reach", "arm", kind="point", log_x=True, names=runs.arms, **titles)
    caption = "Every probe of every run. If f alone decided reach, all points would lie at one value of f."
    return Figure("reach_by_f", "Reach against f at the reach", caption, chart, "x", is_log=True)


def reach_by_method(runs: Runs) -> Figure | None:
    """Draw reach under each position method (arXiv 2410.18745, Table 1)."""
    points = reach_points(runs.reaches, ["arm", "method"])
    if points["method"].nunique() < 2:
        return None
    present = set(points["method"])
    methods = [name for name in runs.methods if name in present]
    points = points.set_index("method").loc[methods].reset_index()
    limits: dict[str, Any] = {"low": "low", "high": "high", "x_limits": (0, farthest(runs.reaches) * BEYOND_LAST)}
    looks: dict[str, Any] = {"shape": "outcome", "legend": False, "names": runs.methods, "height": ROW * len(methods)}
    titles: dict[str, Any] = {"x_title": "reach (tokens)", "y_title": ""}
    chart, n = by_arm(runs, points, "reach", "method", "method", kind="point", **looks, **limits, **titles)
    caption = "At each run's last probe: means over seeds with 95% limits, or one run with the limits of its tests."
    return Figure(
        "reach_by_method", "Reach under each position method", caption + of_arms(points), chart, arms=n, left=NAMES
    )


def by_shift_and_window(runs: Runs) -> Figure | None:
    """Draw reach by the shift and window of STRING, for the arms with at least two of each (its Figure 7)."""
    cells = string_cells(runs.reaches)
    if cells.empty:
        return None
    cells = cells.sort_values("shift", kind="stable").sort_values("window", ascending=False, kind="stable")
    height = CELL * max(3, cells["window"].nunique())
    titles: dict[str, Any] = {"x_title": "shift S", "y_title": "window W"}
    chart, n = by_arm(runs, cells, "shift", "window", "reach", kind="heat", text="text", height=height, **titles)
    caption = (
        "Means over seeds at the last probe, in tokens. + a run reaches the last distance tested; < all runs fail "
    )
    caption += "at the first; * without the runs that fail there."
    return Figure("shift_and_window", "Reach by STRING's shift and window", caption + of_arms(cells), chart, arms=n)


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
    sizes = rows.groupby("arm")[["shift", "window"]].transform("nunique")
    by = ["arm", "shift", "window"]
    points = reach_points(rows[(sizes >= 2).all(axis="columns")], by)
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


def by_method(runs: Runs, *, kind: str, x: str, x_title: str, title: str) -> Figure | None:
    """Draw a share against distance or length: methods in colour, arms side by side."""
    rows: pd.DataFrame = getattr(runs, kind)
    reach = runs.reaches.assign(reach=runs.reaches["reach"].astype(float)).groupby("method")["reach"].mean()
    chosen = sorted({*rows["method"]}, key=lambda name: -reach.fillna(0).get(name, 0))[:MOST_METHODS]
    mean = shares(rows[rows["method"].isin(chosen)], x)
    if mean.empty:
        return None
    looks: dict[str, Any] = {"names": runs.methods, "legend": [name for name in runs.methods if name in chosen]}
    looks["rules"] = [] if runs.threshold is None else [Rule("y", runs.threshold)]
    titles: dict[str, Any] = {"x_title": x_title, "y_title": title, "y_limits": (0, 1)}
    chart, n = by_arm(runs, mean, x, "share", "method", low="low", high="high", **looks, **titles)
    caption = LIMITS + level(runs) + of_arms(mean)
    settings = rows["method"].nunique()
    if settings > len(chosen):
        caption += f" Of {settings} settings, the {MOST_METHODS} that reach farthest; the tables hold the others."
    return Figure(f"by_{x}", f"{title.capitalize()} by {x}", caption, chart, arms=n)


def level(runs: Runs) -> str:
    """Describe the line of the threshold."""
    return "" if runs.threshold is None else " The dashed level is the threshold."


def frequency(runs: Runs) -> Figure | None:
    """Draw the position frequency by distance."""
    rows = runs.frequency.groupby(["arm", "i"], sort=False)["f"].mean().round().reset_index()
    rows = rows[rows["f"] > 0]
    if rows.empty:
        return None
    titles: dict[str, Any] = {"x_title": "relative position i (tokens)", "y_title": "f(i), pairs"}
    chart = draw(rows, "i", "f", "arm", log_y=True, names=runs.arms, marks=False, **titles)
    caption = "How often training used each relative position" + ("; means over seeds." if len(runs.runs) > 1 else ".")
    return Figure("frequency", "Position frequency", caption, chart, "y", is_log=True)


DISTANCE, FOUND = "distance of the number (tokens)", "share of numbers found"
PASSED = "share of tests passed"
DRAWN: tuple[Callable[[Runs], Figure | None], ...] = (
    partial(over_tokens, value="reach", what="Reach: one number", name="growth"),
    partial(over_tokens, value="effective_length", what="Effective length: four needles", name="effective_length"),
    at_frequency,
    reach_by_method,
    by_shift_and_window,
    partial(by_method, kind="distances", x="distance", x_title=DISTANCE, title=FOUND),
    partial(by_method, kind="lengths", x="length", x_title="length (tokens)", title=PASSED),
    frequency,
)
