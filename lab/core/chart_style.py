"""The parts of a chart: axes, colours and shapes of series, rules, and the cells of a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

from lab.core.errors import MissingPackage

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from altair import SchemaBase

BLUE = "#0072b2"
GREY = "#888888"
MEAN, RUN = "mean, 95% limits", "one run"
BEYOND, BELOW = "passes the last tested", "fails the first tested"
CENSORED = {"below": BELOW, "end": BEYOND}  # by what lab.probe.reach.classify_reach returns
OUTCOMES = {  # of a reach that a point shows, with its mark where reach is on the x axis, and on the y axis
    MEAN: ("diamond", "diamond"),
    RUN: ("circle", "circle"),
    BEYOND: ("triangle-right", "triangle-up"),
    BELOW: ("triangle-left", "triangle-down"),
}
WRAPPED = "split(replace(datum.label, regexp('(, [^,]+), ', 'g'), '$1\\n'), '\\n')"  # two settings of a name a line
LINE = 14  # pixels between two lines of text
NAMES = 220  # pixels that a name on an axis may take


class Rule(NamedTuple):
    """A line across a chart at a value of an axis, with a text at its end."""

    axis: Literal["x", "y"]
    value: float
    text: str = ""


def range_of(values: Iterable[float], outcomes: Iterable[str]) -> str:
    """Write the least and the most of values that have no mean; a censored one, at its bound, with < or +.

    Example:
        >>> range_of([179.0, 48.0, 120.4], [BEYOND, BELOW, RUN]), range_of([179.0, 179.0], [BEYOND, BEYOND])
        ('<48 to 179+', '179+')
    """
    marks = {BELOW: "<{:,.0f}", BEYOND: "{:,.0f}+"}
    texts = []
    # Of equal values one below its bound comes first.
    for value, outcome in sorted(zip(values, outcomes, strict=True), key=lambda pair: (pair[0], pair[1] != BELOW)):
        texts.append(marks.get(outcome, "{:,.0f}").format(value))
    return " to ".join(dict.fromkeys([texts[0], texts[-1]]))


class Axis(NamedTuple):
    """An axis: the column that it shows, its title, by default the column's name, and its scale."""

    column: str
    title: str | None = None
    log: bool = False
    limits: tuple[float, float] | None = None
    percent: bool = False


def altair() -> ModuleType:
    """Import Altair and what renders its charts."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingPackage(str(error.name), "drawing pictures", "plot") from error
    altair.data_transformers.disable_max_rows()
    return altair


def is_numeric(values: pd.Series[float]) -> bool:
    """Return whether a column contains numbers; one without any value counts as numbers."""
    return values.dtype.kind in "iuf" or not values.notna().any()


def words(name: object) -> str:
    return str(name).replace("_", " ")


def list_tips(table: pd.DataFrame) -> list[alt.Tooltip]:
    """List what pointing at a mark shows: the columns that have values."""
    alt = altair()
    return [alt.Tooltip(str(name), title=words(name)) for name in table.columns if table[name].notna().any()]


def build_axis(side: str, table: pd.DataFrame, axis: Axis | str, *, named: bool = False) -> alt.X | alt.Y:
    """Build an axis of names in the order of the rows, or of numbers unless it is to be `named`.

    A logarithmic x axis has powers of two as its ticks.
    """
    alt = altair()
    if isinstance(axis, str):
        axis = Axis(axis)
    channel = alt.X if side == "x" else alt.Y
    heading = words(axis.column) if axis.title is None else axis.title
    ticks = alt.Axis(labelOverlap="greedy", labelSeparation=8 if side == "x" else 1)
    if named or not is_numeric(table[axis.column]):
        ticks["labelAngle"], ticks["labelLimit"] = 0, NAMES
        order = list(dict.fromkeys(table[axis.column]))
        return channel(f"{axis.column}:O", title=heading, sort=order, axis=ticks)
    # A logarithmic y axis of more decades has ticks and lines at powers of ten alone.
    ticks["tickCount"] = 3 if axis.log and side == "y" else 6
    scale = alt.Scale(type="log", nice=False) if axis.log else alt.Scale(zero=False)
    if side == "x":
        scale["nice"] = False
        scale["padding"] = 6
    if axis.percent:
        ticks["format"] = ".0%"
    elif axis.log and side == "x":
        scale["base"] = 2
    if axis.limits is not None:
        scale["domain"] = list(axis.limits)
        scale["nice"] = False  # else Vega would widen the domain to round numbers
    return channel(f"{axis.column}:Q", title=heading, scale=scale, axis=ticks)


def build_series(
    table: pd.DataFrame,
    series: str,
    names: Sequence[str] | None,
    side: Literal["x", "y"],
    *,
    points: bool,
    listed: bool,
) -> list[SchemaBase]:
    """Give each series its colour and its dash or shape, which repeat after 8 and 5; numbers go light to dark.

    Return the channels, the colour first. Points that have an outcome, a column of names of OUTCOMES, are marked by it,
    on the axis of the side.
    """
    alt = altair()
    if is_numeric(table[series]):
        bar = alt.Legend(title=words(series), orient="right") if table[series].nunique() > 1 else None
        color = alt.Color(f"{series}:Q", scale=alt.Scale(scheme="viridis", reverse=True), legend=bar)
        return [color, alt.Detail(f"{series}:N")]
    values = list(names or dict.fromkeys(table[series].astype(str)))
    legend = None
    if listed and len(values) > 1:
        legend = alt.Legend(title=None, labelExpr=WRAPPED, symbolStrokeWidth=0, columns=2)
        if not points:
            legend["symbolType"] = "stroke"
            legend["symbolSize"] = 400
            legend["symbolStrokeWidth"] = 2

    def scale(styles: Sequence[object]) -> SchemaBase:
        return alt.Scale(domain=values, range=[styles[k % len(styles)] for k in range(len(values))])

    # They can be seen on white and black.
    palette = (BLUE, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#aa4499", "#96b45a")
    channels = [alt.Color(f"{series}:N", scale=scale(palette), legend=legend)]
    if not points:
        dashes = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (12, 4))
        channels.append(alt.StrokeDash(f"{series}:N", scale=scale(dashes), legend=legend))
    elif "outcome" in table:
        outcomes = [name for name in OUTCOMES if name in set(table["outcome"])]
        marks = alt.Scale(domain=outcomes, range=[OUTCOMES[name]["xy".index(side)] for name in outcomes])
        channels.append(alt.Shape("outcome:N", scale=marks, legend=alt.Legend(title=None, orient="top")))
    elif listed:
        shapes = ("circle", "triangle-right", "square", "triangle-up", "diamond", "cross", "triangle-down")
        channels.append(alt.Shape(f"{series}:N", scale=scale(shapes), legend=legend))
    return channels


def plot_rule(rule: Rule, above: int = 0) -> list[alt.Chart]:
    """Plot a dashed line across the chart, and its text at the end of it, `above` lines of text above the chart."""
    alt = altair()
    chart = alt.Chart(alt.Data(values=[{"rule": rule.value, "text": rule.text}]))
    text = chart.encode(text="text:N")
    if rule.axis == "x":
        position = alt.X("rule:Q")
        text = text.encode(position, alt.YValue(0)).mark_text(color="#666666", fontSize=11, dy=-10 - LINE * above)
    else:
        position = alt.Y("rule:Q")
        text = text.encode(position, alt.XValue("width"))
        text = text.mark_text(color="#666666", fontSize=11, align="right", dx=-10, dy=-6)
    line = chart.mark_rule(color=GREY, strokeDash=[4, 3], strokeWidth=1).encode(position)
    return [line, text] if rule.text else [line]


def plot_cells(table: pd.DataFrame, axes: Sequence[alt.X | alt.Y], number: str, *, percent: bool) -> list[alt.Chart]:
    """Plot the cells of a heat map, with their texts or numbers where they fit."""
    alt = altair()
    end = float(table[number].max())
    style = ",.4~g"
    field = f"datum[{number!r}]"
    label = f"format({field}, {style!r})"
    if percent:
        end = 1.0
        style = ".0%"
        label = f"round(100 * {field})"
    if "text" in table:
        label = "datum.text"
    legend = alt.Legend(title=words(number), orient="right", format=style)
    color = alt.Color(f"{number}:Q", scale=alt.Scale(domain=[0, end], scheme="viridis"), legend=legend)
    cells = alt.Chart().mark_rect().encode(color=color, tooltip=list_tips(table))
    if max(len(axis["sort"]) for axis in axes) > 24:  # no numbers fit
        return [cells]
    # Above this part of the viridis scale black has more contrast than white (WCAG 2).
    ink = alt.condition(f"{field} > {0.435 * end}", alt.value("black"), alt.value("white"))
    texts = alt.Chart().mark_text(fontSize=11).transform_filter(f"isValid({field})").transform_calculate("label", label)
    return [cells, texts.encode(text="label:N", color=ink)]


def plot_edge(axis: alt.X | alt.Y, value: float) -> list[alt.Chart]:
    """Plot a line behind the last column of a heat map that is at most a value, and before the next."""
    alt = altair()
    inside = [column for column in axis["sort"] if column <= value]
    if not inside or len(inside) == len(axis["sort"]):
        return []
    chart = alt.Chart(alt.Data(values=[{"column": inside[-1]}]))
    line = chart.mark_rule(color="#222222", strokeDash=[4, 3], strokeWidth=2)
    return [line.encode(x=alt.X("column:O", bandPosition=1, sort=axis["sort"]))]
