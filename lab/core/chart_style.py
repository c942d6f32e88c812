"""The parts of a chart: axes, colours and shapes of series, rules, and the cells of a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lab.core.errors import MissingPackage

if TYPE_CHECKING:
    import pandas as pd

BLUE = "#0072b2"
GREY = "#888888"
PALETTE = (BLUE, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#aa4499", "#96b45a")  # seen on white and black
SHAPES = ("circle", "triangle-right", "square", "triangle-up", "diamond", "cross", "triangle-down")
MEAN, RUN = "mean, 95% limits", "one run"
BEYOND, BELOW = "passes the last tested", "fails the first tested"
CENSORED = {"below": BELOW, "end": BEYOND}  # by what lab.probe.reach.classify_reach returns
OUTCOMES = {  # of a reach that a point shows, with its mark where reach is on the x axis, and on the y axis
    MEAN: ("diamond", "diamond"),
    RUN: ("circle", "circle"),
    BEYOND: ("triangle-right", "triangle-up"),
    BELOW: ("triangle-left", "triangle-down"),
}
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (12, 4))
WRAPPED = "split(replace(datum.label, regexp('(, [^,]+), ', 'g'), '$1\\n'), '\\n')"  # two settings of a name a line
LINE = 14  # pixels between two lines of text
CROWDED = 24  # columns or rows of a heat map; in the cells of more no numbers fit, nor do all labels
NAMES = 220  # pixels that a name on an axis may take
BRIGHT = 0.435  # part of the viridis scale above which black has more contrast than white (WCAG 2)


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


def altair() -> Any:
    """Import Altair and what renders its charts."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingPackage(str(error.name), "drawing pictures", "plot") from error
    altair.data_transformers.disable_max_rows()
    return altair


def is_numeric(values: pd.Series[Any]) -> bool:
    """Return whether a column holds numbers; one without any value counts as numbers."""
    return values.dtype.kind in "iuf" or not values.notna().any()


def words(name: object) -> str:
    return str(name).replace("_", " ")


def build_axis(
    side: Literal["x", "y"],
    values: pd.Series[Any],
    title: str | None,
    *,
    named: bool,
    log: bool,
    limits: tuple[float, float] | None = None,
    percent: bool = False,
) -> Any:
    """Build an axis of names in the order of the rows, or of numbers.

    A logarithmic x axis has powers of two as its ticks.
    """
    alt = altair()
    channel = alt.X if side == "x" else alt.Y
    heading = words(values.name) if title is None else title
    if named:
        distinct = list(dict.fromkeys(values))
        axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=8, labelLimit=NAMES)
        return channel(f"{values.name}:O", title=heading, sort=distinct, axis=axis)
    axis = alt.Axis(labelOverlap="greedy", labelSeparation=8, tickCount=6)
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
    if side == "x":
        scale["nice"] = False
        scale["padding"] = 6
    if percent:
        axis["format"] = ".0%"
    elif log and side == "x":
        scale["base"] = 2
    if limits is not None:
        scale["domain"] = list(limits)
        scale["nice"] = False  # else Vega would widen the domain to round numbers
    return channel(f"{values.name}:Q", title=heading, scale=scale, axis=axis)


def build_series(
    table: pd.DataFrame,
    series: str,
    kind: str,
    names: Sequence[str] | None,
    listed: bool,
    outcome: str | None,
    side: Literal["x", "y"],
) -> list[Any]:
    """Give each series its colour and its dash or shape, grey once PALETTE is used up; numbers go light to dark.

    Return the channels, the colour first. Points that have an outcome, a column of names of OUTCOMES, are marked by it,
    on the axis of the side.
    """
    alt = altair()
    if is_numeric(table[series]):
        bar = alt.Legend(title=words(series), orient="right")
        color = alt.Color(f"{series}:Q", scale=alt.Scale(scheme="viridis", reverse=True), legend=bar)
        return [color, alt.Detail(f"{series}:N")]
    values = list(names or dict.fromkeys(table[series].astype(str)))
    legend = None
    if listed and len(values) > 1:
        entries = values[: len(PALETTE)]
        legend = alt.Legend(title=None, values=entries, labelExpr=WRAPPED, symbolStrokeWidth=0, columns=2)
        if kind == "line":
            legend["symbolType"] = "stroke"
            legend["symbolSize"] = 400
            legend["symbolStrokeWidth"] = 2
    greys = [GREY] * (len(values) - len(PALETTE))  # none of a negative number
    dashes = [DASHES[k % len(DASHES)] for k in range(len(values) - len(greys))]
    colors = alt.Scale(domain=values, range=[*PALETTE[: len(values)], *greys])
    channels = [alt.Color(f"{series}:N", scale=colors, legend=legend)]
    if outcome is not None:
        outcomes = [name for name in OUTCOMES if name in set(table[outcome])]
        scale = alt.Scale(domain=outcomes, range=[OUTCOMES[name]["xy".index(side)] for name in outcomes])
        channels.append(alt.Shape(f"{outcome}:N", scale=scale, legend=alt.Legend(title=None, orient="top")))
    elif kind == "point" and listed:
        channels.append(alt.Shape(f"{series}:N", scale=alt.Scale(domain=values, range=SHAPES), legend=legend))
    elif kind == "line":
        scale = alt.Scale(domain=values, range=[*dashes, *[DASHES[0]] * len(greys)])
        channels.append(alt.StrokeDash(f"{series}:N", scale=scale, legend=legend))
    return channels


def plot_rule(rule: Rule, above: int = 0) -> list[Any]:
    """Plot a dashed line across the chart, and its text at the end of it, so many lines of text above the chart."""
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


def plot_cells(
    table: pd.DataFrame, sides: Sequence[str], number: str, text: str | None, percent: bool, tips: list[Any]
) -> list[Any]:
    """Plot the cells of a heat map, with their texts or numbers where they fit; `sides` are its columns and rows."""
    alt = altair()
    end = float(table[number].max())
    style = ",.4~g"
    field = f"datum[{number!r}]"
    label = f"format({field}, {style!r})"
    if percent:
        end = 1.0
        style = ".0%"
        label = f"round(100 * {field})"
    if text:
        label = f"datum[{text!r}]"
    legend = alt.Legend(title=words(number), orient="right", format=style)
    color = alt.Color(f"{number}:Q", scale=alt.Scale(domain=[0, end], scheme="viridis"), legend=legend)
    cells = alt.Chart().mark_rect().encode(color=color, tooltip=tips)
    if max(table[side].nunique() for side in sides) > CROWDED:
        return [cells]
    ink = alt.condition(f"{field} > {BRIGHT * end}", alt.value("black"), alt.value("white"))
    texts = alt.Chart().mark_text(fontSize=11).transform_filter(f"isValid({field})").transform_calculate("label", label)
    return [cells, texts.encode(text="label:N", color=ink)]


def plot_edge(columns: pd.Series[Any], value: float) -> list[Any]:
    """Plot a line behind the last column of a heat map that is at most a value, and before the next."""
    alt = altair()
    distinct = list(dict.fromkeys(columns))
    inside = [column for column in distinct if column <= value]
    if not inside or len(inside) == len(distinct):
        return []
    chart = alt.Chart(alt.Data(values=[{columns.name: inside[-1]}]))
    line = chart.mark_rule(color="#222222", strokeDash=[4, 3], strokeWidth=2)
    return [line.encode(x=alt.X(f"{columns.name}:O", bandPosition=1, sort=distinct))]
