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
CENSORED = {"below": BELOW, "end": BEYOND}  # by what lab.runs.arms.censored returns
OUTCOMES = {  # of a reach that a point shows, with its mark where reach is on the x axis, and on the y axis
    MEAN: ("diamond", "diamond"),
    RUN: ("circle", "circle"),
    BEYOND: ("triangle-right", "triangle-up"),
    BELOW: ("triangle-left", "triangle-down"),
}
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (12, 4))
FEW = 12  # values of x that are all written on a logarithmic axis
MANY = 100_000  # numbers from here on are written with k, M or G
WRAPPED = "split(replace(datum.label, regexp('(, [^,]+), ', 'g'), '$1\\n'), '\\n')"  # two settings of a name a line
LINE = 14  # pixels between two lines of text
CROWDED = 24  # columns or rows of a heat map; in the cells of more no numbers fit, nor do all labels
NAMES = 220  # pixels that a name on an axis may take
BRIGHT = 0.435  # part of the viridis scale above which black has more contrast than white (WCAG 2)


class Rule(NamedTuple):
    """A line across a chart at a value of an axis, with a text beside it."""

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
    rising = sorted(zip(values, outcomes, strict=True), key=lambda pair: (pair[0], pair[1] != BELOW))
    texts = [marks.get(outcome, "{:,.0f}").format(value) for value, outcome in rising]
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


def axis(
    side: Literal["x", "y"],
    values: pd.Series[Any],
    title: str | None,
    *,
    named: bool,
    log: bool,
    limits: tuple[float, float] | None = None,
    percent: bool = False,
) -> Any:
    """Describe an axis of names in the order of the rows, or of numbers.

    A logarithmic x axis has powers of two as its ticks, or all values where they are few whole numbers.
    """
    alt = altair()
    channel = alt.X if side == "x" else alt.Y
    heading = words(values.name) if title is None else title
    if named:
        places = list(dict.fromkeys(values))
        crowded = is_numeric(values) and len(places) > CROWDED
        look = {"values": places[:: len(places) // FEW]} if crowded else {}
        named_axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelLimit=NAMES, **look)
        return channel(f"{values.name}:O", title=heading, sort=places, axis=named_axis)
    options: dict[str, Any] = {"labelOverlap": "greedy", "tickCount": 6}
    scale: dict[str, Any] = {"type": "log", "nice": False} if log else {"zero": False}
    if side == "x":
        scale |= {"nice": False, "padding": 6}
    if percent or values.dropna().abs().max() >= MANY:
        options["format"] = ".0%" if percent else ".3~s"
        if log and values.min() < 1:  # where the format has m for thousandths
            options["labelExpr"] = "datum.value < 1 ? datum.value : datum.label"
    elif log and side == "x":
        scale["base"] = 2
        options["format"] = ","
        ticks = sorted({*values.dropna().astype(float)})
        if len(ticks) <= FEW and all(tick.is_integer() for tick in ticks):
            options["values"] = ticks
    if limits is not None:
        scale |= {"domain": list(limits), "nice": False}
    return channel(f"{values.name}:Q", title=heading, scale=alt.Scale(**scale), axis=alt.Axis(**options))


def looks_of(
    table: pd.DataFrame,
    series: str,
    kind: str,
    names: Sequence[str] | None,
    listed: bool | Sequence[str],
    outcome: str | None,
    side: Literal["x", "y"],
) -> dict[str, Any]:
    """Give each series its colour and its dash or shape, grey after as many as PALETTE has; numbers go light to dark.

    Points that have an outcome, a column of names of OUTCOMES, are marked by it, on the axis of the side.
    """
    alt = altair()
    if is_numeric(table[series]):
        values = sorted(table[series].dropna().unique().tolist())
        few = {"values": values} if len(values) <= len(PALETTE) else {}  # else ticks between them
        bar = alt.Legend(title=words(series), orient="right", format=".3~s", **few)
        color = alt.Color(f"{series}:Q", scale=alt.Scale(scheme="viridis", reverse=True), legend=bar)
        return {"color": color, "detail": f"{series}:N"}
    values = list(names or dict.fromkeys(table[series].astype(str)))
    entries = (values if isinstance(listed, bool) else list(listed))[: len(PALETTE)]
    look: dict[str, Any] = {"title": None, "values": entries, "labelExpr": WRAPPED, "symbolStrokeWidth": 0}
    look["columns"] = 2 if max(map(len, entries), default=0) > 24 else 4
    if kind == "line":
        look |= {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeWidth": 2}
    legend = alt.Legend(**look) if listed and len(entries) > 1 else None
    n_grey = max(0, len(values) - len(PALETTE))
    scale = alt.Scale(domain=values, range=[*PALETTE[: len(values)], *[GREY] * n_grey])
    style = {"color": alt.Color(f"{series}:N", scale=scale, legend=legend)}
    if outcome is not None:
        kinds = [kind for kind in OUTCOMES if kind in set(table[outcome])]
        scale = alt.Scale(domain=kinds, range=[OUTCOMES[kind]["xy".index(side)] for kind in kinds])
        style["shape"] = alt.Shape(f"{outcome}:N", scale=scale, legend=alt.Legend(title=None, orient="top"))
    elif kind == "point" and listed:
        style["shape"] = alt.Shape(f"{series}:N", scale=alt.Scale(domain=values, range=SHAPES), legend=legend)
    elif kind == "line":
        dashes = [DASHES[k % len(DASHES)] for k in range(len(values) - n_grey)]
        scale = alt.Scale(domain=values, range=[*dashes, *[DASHES[0]] * n_grey])
        style["strokeDash"] = alt.StrokeDash(f"{series}:N", scale=scale, legend=legend)
    return style


def rule_layers(rule: Rule, above: int = 0) -> list[Any]:
    """Draw a dashed line across the chart, and its text at the end of it, so many lines of text above the chart."""
    alt = altair()
    chart = alt.Chart(alt.Data(values=[{"rule": rule.value, "text": rule.text}]))
    place = {rule.axis: alt.X("rule:Q") if rule.axis == "x" else alt.Y("rule:Q")}
    end = {"y": alt.value(0)} if rule.axis == "x" else {"x": alt.value("width")}
    look = {"dy": -10 - LINE * above} if rule.axis == "x" else {"align": "right", "dx": -10, "dy": -6}
    text = chart.mark_text(color="#666666", fontSize=11, **look).encode(**place, **end, text="text:N")
    line = chart.mark_rule(color=GREY, strokeDash=[4, 3], strokeWidth=1).encode(**place)
    return [line, text] if rule.text else [line]


def heat_layers(
    table: pd.DataFrame, sides: Sequence[str], number: str, text: str | None, percent: bool, tips: list[Any]
) -> list[Any]:
    """Draw the cells of a heat map, with their texts or numbers where they fit; `sides` are its columns and rows."""
    alt = altair()
    end = 1.0 if percent else float(table[number].max())
    style = ".0%" if percent else ",.4~g"
    legend = alt.Legend(title=words(number), orient="right", format=style)
    color = alt.Color(f"{number}:Q", scale=alt.Scale(domain=[0, end], scheme="viridis"), legend=legend)
    cells = alt.Chart().mark_rect().encode(color=color, tooltip=tips)
    if max(table[side].nunique() for side in sides) > CROWDED:
        return [cells]
    field = f"datum[{number!r}]"
    label = f"datum[{text!r}]" if text else f"round(100 * {field})" if percent else f"format({field}, {style!r})"
    ink = alt.condition(f"{field} > {BRIGHT * end}", alt.value("black"), alt.value("white"))
    texts = alt.Chart().mark_text(fontSize=11).transform_filter(f"isValid({field})").transform_calculate("label", label)
    return [cells, texts.encode(text="label:N", color=ink)]


def edge_after(columns: pd.Series[Any], value: float) -> list[Any]:
    """Draw a line behind the last column of a heat map that is no farther than a value, and before the next."""
    alt = altair()
    distinct = list(dict.fromkeys(columns))
    inside = [column for column in distinct if column <= value]
    if not inside or len(inside) == len(distinct):
        return []
    chart = alt.Chart(alt.Data(values=[{columns.name: inside[-1]}]))
    line = chart.mark_rule(color="#222222", strokeDash=[4, 3], strokeWidth=2)
    return [line.encode(x=alt.X(f"{columns.name}:O", bandPosition=1, sort=distinct))]
