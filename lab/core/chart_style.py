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
RUN, BEYOND, BELOW = "one run", "passes the last tested", "fails the first tested"
CENSORED = {"below": BELOW, "end": BEYOND}  # by what lab.probe.reach.classify_reach returns
OUTCOMES = {RUN: "circle", BEYOND: "triangle-up", BELOW: "triangle-down"}  # of a reach that a point shows: its mark
WRAPPED = "replace(datum.label, regexp('(, [^,]+), ', 'g'), '$1\\n')"  # two settings of a name a line
TIPS = {"content": "data"}  # pointing at a mark shows its row
LINE = 14  # pixels between two lines of text


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
    # Of equal values one below its bound comes first.
    rising = sorted(zip(values, outcomes, strict=True), key=lambda pair: (pair[0], pair[1] != BELOW))
    texts = [marks.get(outcome, "{:,.0f}").format(value) for value, outcome in (rising[0], rising[-1])]
    return " to ".join(dict.fromkeys(texts))


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


def build_axis(side: str, table: pd.DataFrame, axis: Axis | str, *, named: bool = False) -> alt.X | alt.Y:
    """Build an axis of names in the order of the rows, or of numbers unless it is to be `named`.

    A logarithmic x axis has powers of two as its ticks.
    """
    alt = altair()
    if isinstance(axis, str):
        axis = Axis(axis)
    channel = alt.X if side == "x" else alt.Y
    title = words(axis.column) if axis.title is None else axis.title
    if named or not is_numeric(table[axis.column]):
        return channel(f"{axis.column}:O", title=title, sort=list(dict.fromkeys(table[axis.column])))
    ticks, scale = alt.Axis(tickCount=6), alt.Scale(zero=False)
    if axis.percent:
        ticks["format"] = ".0%"
    if side == "x":
        scale["nice"], scale["padding"] = False, 6  # else Vega would widen the domain to round numbers
    if axis.log:
        scale["type"], scale["nice"] = "log", False
        if side == "x":
            scale["base"] = 2
        else:
            ticks["tickCount"] = 3  # an axis of more decades has ticks and lines at powers of ten alone
    if axis.limits is not None:
        scale["domain"] = list(axis.limits)
    return channel(f"{axis.column}:Q", title=title, scale=scale, axis=ticks)


def build_series(
    table: pd.DataFrame, series: str, names: Sequence[str] | None, *, points: bool, listed: bool
) -> list[SchemaBase]:
    """Give each series its colour and its dash or shape, which repeat after 8 and 5; numbers go light to dark.

    Return the channels, the colour first. Points that have an outcome, a column of names of OUTCOMES, are marked by it.
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
            legend["symbolType"], legend["symbolSize"], legend["symbolStrokeWidth"] = "stroke", 400, 2
    channels = [alt.Color(f"{series}:N", scale=alt.Scale(domain=values), legend=legend)]
    if not points:
        scale = alt.Scale(domain=values, range=[[1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [12, 4]])
        channels.append(alt.StrokeDash(f"{series}:N", scale=scale, legend=legend))
    elif "outcome" in table:
        outcomes = [name for name in OUTCOMES if name in set(table["outcome"])]
        marks = alt.Scale(domain=outcomes, range=[OUTCOMES[name] for name in outcomes])
        channels.append(alt.Shape("outcome:N", scale=marks, legend=alt.Legend(title=None, orient="top")))
    elif listed:
        channels.append(alt.Shape(f"{series}:N", scale=alt.Scale(domain=values), legend=legend))
    return channels


def plot_rule(rule: Rule, above: int = 0) -> list[alt.Chart]:
    """Plot a dashed line across the chart, and its text at the end of it, `above` lines of text above the chart."""
    alt = altair()
    chart = alt.Chart(alt.Data(values=[{}]))
    if rule.axis == "x":
        ends = alt.XDatum(rule.value), alt.YValue(0)
        text = chart.mark_text(text=rule.text, color="#666666", dy=-10 - LINE * above)
    else:
        ends = alt.YDatum(rule.value), alt.XValue("width")
        text = chart.mark_text(text=rule.text, color="#666666", align="right", dx=-10, dy=-6)
    line = chart.mark_rule(color=GREY, strokeDash=[4, 3]).encode(ends[0])
    return [line, text.encode(*ends)] if rule.text else [line]


def plot_cells(table: pd.DataFrame, size: int, number: str, *, percent: bool) -> list[alt.Chart]:
    """Plot the cells of a heat map, with their texts or numbers if they fit: up to 24 of the `size` on a side."""
    alt = altair()
    end, style = float(table[number].max()), ",.4~g"
    label = f"format(datum[{number!r}], {style!r})"
    if percent:
        end, style = 1.0, ".0%"
        label = f"format(100 * datum[{number!r}], '.0f')"  # text: a line break would split a number
    if "text" in table:
        label = "datum.text"
    legend = alt.Legend(title=words(number), orient="right", format=style)
    color = alt.Color(f"{number}:Q", scale=alt.Scale(domain=[0, end], scheme="viridis"), legend=legend)
    cells = alt.Chart().mark_rect(tooltip=TIPS).encode(color=color)
    if size > 24:
        return [cells]
    # Above this part of the viridis scale black has more contrast than white (WCAG 2).
    ink = alt.condition(f"datum[{number!r}] > {0.435 * end}", alt.value("black"), alt.value("white"))
    texts = alt.Chart().mark_text().transform_filter(f"isValid(datum[{number!r}])")
    return [cells, texts.transform_calculate("label", label).encode(text="label:N", color=ink)]
