"""The parts that all figures of a report share: colours and shapes, axes, tooltips, zooming, the choice of runs.

Arms and position methods differ in colour and also in shape or dash, for readers who do not see the colours. Each has
the same look in every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from eval.report.data import MOST_FACETS
from lab.plots import PALETTE

COLORS = (*PALETTE, "#8a8a8a", "#aa4499")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (12, 4))
HEIGHT = 300
IMAGE_WIDTH = 640
FACET = {"width": 240, "height": 160}
EDGE = 6  # pixels from the outer points to the sides, which cut what lies beyond
MOST_IN_LEGEND = 24
WRAPPED = (
    "split(replace(datum.label, regexp('(, [^,]+), ', 'g'), '$1\\n'), '\\n')"  # a name of many settings: two a line
)
CHOSEN = "!isArray(pick) || indexof(pick, datum.run || datum.arm) >= 0"


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


def of_first_arms(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of the arms that are drawn."""
    return rows[rows["arm"].isin(list(dict.fromkeys(rows["arm"]))[:MOST_FACETS])]


def of_arms(rows: pd.DataFrame) -> str:
    """Note that not all arms are drawn."""
    arms = rows["arm"].nunique()
    return f" The first {MOST_FACETS} of {arms} arms; the tables hold the others." if arms > MOST_FACETS else ""


def base(rows: pd.DataFrame) -> Any:
    """Begin a chart whose rows are those of the runs and arms that the page has put into `pick`."""
    import altair as alt

    return picked(alt.Chart(rows))


def picked(chart: Any) -> Any:
    """Let the page choose the rows of a chart."""
    import altair as alt

    return chart.add_params(alt.param(name="pick", value="")).transform_filter(CHOSEN)


def look(
    field: str,
    values: Sequence[str],
    kind: str,
    *,
    title: str | None = None,
    listed: Sequence[str] | None = None,
    has_points: bool = False,
) -> dict[str, Any]:
    """Give each value of a field its colour and its shape, or its strokeDash: `kind` is either.

    The legend has the values that are `listed`, or all, as points where the lines have some.
    """
    import altair as alt

    ranges: dict[str, Sequence[Any]] = {"color": COLORS, "shape": SHAPES, "strokeDash": DASHES}
    width: dict[str, Any] = {"symbolStrokeWidth": 0} if has_points or kind == "shape" else {}
    shown = {"symbolOpacity": 1, "values": listed or values, "labelExpr": WRAPPED, **width}
    named = alt.Legend(title=title, **shown) if len(values) > 1 else None
    classes: dict[str, Any] = {"color": alt.Color, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    return {
        channel: classes[channel](f"{field}:N", scale=scale(values, ranges[channel]), legend=named)
        for channel in ("color", kind)
    }


def scale(values: Sequence[str], looks: Sequence[Any]) -> Any:
    """Assign looks to values, from the first again where there are more values."""
    import altair as alt

    return alt.Scale(domain=list(values), range=[looks[k % len(looks)] for k in range(len(values))])


def axis(
    field: str,
    title: str,
    *,
    y: bool = False,
    log: bool = False,
    zero: bool = True,
    end: float | None = None,
    **options: Any,
) -> Any:
    """Describe the x axis, or the y axis, up to its `end` if one is given; its ticks depend on its length."""
    import altair as alt

    size, each = ("height", 50) if y else ("width", 90)
    ticks = alt.Axis(tickCount=alt.ExprRef(f"max(2, {size} / {each})"), labelOverlap="greedy", **options)
    room: dict[str, Any] = {} if y else {"padding": EDGE, "nice": False}
    room |= {} if end is None else {"domainMax": end}
    limits = alt.Scale(type="log") if log else alt.Scale(zero=zero, **room)
    return (alt.Y if y else alt.X)(f"{field}:Q", title=title, scale=limits, axis=ticks)


def tips(rows: pd.DataFrame) -> list[Any]:
    """Show the filled columns of a row when it is pointed at."""
    import altair as alt

    filled = [name for name in rows.columns if rows[name].notna().any() and name not in ("probe", "open")]
    numbers = {name for name in filled if pd.api.types.is_numeric_dtype(rows[name])}
    formats: dict[bool, dict[str, Any]] = {True: {"format": ",.4~r"}, False: {"type": "nominal"}}
    return [alt.Tooltip(name, title=words(name), **formats[name in numbers]) for name in filled]


def interactive(chart: Any) -> Any:
    """Let a chart be dragged, and zoomed by Ctrl and the mouse wheel, which alone scrolls the page."""
    import altair as alt

    zoom = alt.selection_interval(bind="scales", zoom="wheel![event.ctrlKey || event.metaKey]", name="zoom")
    return finished(chart.properties(width="container", height=HEIGHT).add_params(zoom))


def finished(chart: Any) -> Any:
    """Put the legend below, and set sizes of text that can be read on paper."""
    legend = {"orient": "bottom", "columns": 2, "labelLimit": 320, "symbolLimit": MOST_IN_LEGEND, "symbolSize": 70}
    sizes = {"labelFontSize": 11, "titleFontSize": 12}
    return chart.configure_legend(**legend, **sizes).configure_axis(**sizes).configure_header(labelFontSize=12)


def by_arm(rows: pd.DataFrame, layers: Any, *, height: int | None = None, left: int = 70) -> Any:
    """Draw layers for each arm side by side, and those of a single arm as wide as the page.

    `left` is the room in pixels that the y axis may take beside several arms.
    """
    import altair as alt

    arms = list(dict.fromkeys(rows["arm"]))
    chart: Any = alt.layer(*layers, data=rows)
    if len(arms) == 1:
        chart = chart.properties(width="container", height=height or HEIGHT)
    else:
        header = alt.Header(labelLimit=FACET["width"], labelFontWeight="bold", labelExpr=WRAPPED)
        facet = alt.Facet("arm:N", title=None, sort=arms, header=header)
        size = {**FACET, "height": height or FACET["height"]}
        chart = (
            chart.properties(**size)
            .facet(facet=facet, columns=3)
            .properties(usermeta={"left": left, "arms": len(arms)})
        )
    return finished(picked(chart))


def words(name: str) -> str:
    """Write a column's name as words."""
    return name.replace("_", " ")
