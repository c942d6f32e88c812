"""Pictures: one chart from a table's rows, as PNG, SVG or a page that can be zoomed and pointed at.

    chart = draw(rows, "distance", "score", series="method", low="low", high="high", rules=[Rule("x", 2048, "window")])
    save(below(chart, draw(rows, "distance", "f", log_y=True)), Path("curve.png"))

Colours are safe for the colour-blind (Okabe, Ito 2008), and series also differ in dash or shape. A series of numbers,
such as layers, is drawn from light to dark instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from lab.errors import ConfigError, MissingPackage
from lab.files import write_atomic, writing

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = "pd.DataFrame | Sequence[Mapping[str, Any]]"
Kind = Literal["line", "point", "bar", "heat", "area"]
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#888888"
PALETTE = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#aa4499")
SHAPES = ("circle", "triangle-right", "square", "triangle-up", "diamond", "cross", "triangle-down")
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (12, 4))
WIDTH, HEIGHT = 480, 280  # pixels of one chart
FEW = 12  # values of x that are all written on a logarithmic axis; columns of a heat map whose cells show numbers
MANY = 100_000  # numbers from here on are written with k, M or G
PNG_SCALE = 2.0
WRAPPED = "split(replace(datum.label, regexp('(, [^,]+), ', 'g'), '$1\\n'), '\\n')"  # two settings of a name a line
NAMES = 280  # pixels that a name on an axis may take
BRIGHT = 0.435  # part of the viridis scale above which black has more contrast than white (WCAG 2)


class Rule(NamedTuple):
    """A line across a chart at a value of an axis, with a text beside it."""

    axis: Literal["x", "y"]
    value: float
    text: str = ""


def altair() -> Any:
    """Import Altair and what renders its charts.

    Raises: MissingPackage.
    """
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingPackage(str(error.name), "drawing pictures", "plot") from error
    altair.data_transformers.disable_max_rows()
    return altair


def draw(
    rows: Rows,
    x: str,
    y: str,
    series: str | None = None,
    facet: str | None = None,
    low: str | None = None,
    high: str | None = None,
    kind: Kind = "line",
    *,
    log_x: bool = False,
    log_y: bool = False,
    title: str = "",
    x_title: str | None = None,
    y_title: str | None = None,
    x_limits: tuple[float, float] | None = None,
    y_limits: tuple[float, float] | None = None,
    percent: bool = False,
    color: str | None = None,
    names: Sequence[str] | None = None,
    legend: bool | Sequence[str] = True,
    shape: str | None = None,
    each: str | None = None,
    text: str | None = None,
    rules: Sequence[Rule] = (),
    marks: bool = True,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Any:
    """Draw rows as one chart; a row without x or y leaves a gap.

    `low` and `high` are columns of limits: a band of a line, a bar of a point. Points may have names on one axis, x or
    y. A `heat` map has ordered columns `x`, rows `y`, and the numbers `series` in the cells, or their `text`. `percent`
    writes y, or the cells, as percent. `names` are the series in the order of their colours, `legend` those that it
    lists. Points differ by `shape` if that is given, and lines are drawn for `each` of a column's values. `marks` shows
    the points of lines. `facet` gives each value a chart of its own.
    Raises: MissingPackage without Altair.
    """
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(rows)
    tips = [alt.Tooltip(str(name), title=words(name)) for name in table.columns if table[name].notna().any()]
    if kind == "heat":
        sides = {"x": ordered(alt.X, table[x], x, x_title), "y": ordered(alt.Y, table[y], y, y_title)}
        layers = [each.encode(**sides) for each in heat_layers(table, x, series or "score", text, percent, tips)]
        layers += [edge for rule in rules if rule.axis == "x" for edge in edge_after(table[x], rule)]
    else:
        has_names = {"x": kind == "bar" or not is_numeric(table[x]), "y": not is_numeric(table[y])}
        value = "percent" if percent else ""
        sides = {
            "x": ordered(alt.X, table[x], x, x_title)
            if has_names["x"]
            else number_axis(alt.X, table[x], x, x_title, log=log_x, limits=x_limits),
            "y": ordered(alt.Y, table[y], y, y_title)
            if has_names["y"]
            else number_axis(alt.Y, table[y], y, y_title, log=log_y, limits=y_limits, style=value),
        }
        looks = (
            {"color": alt.value(color or BLUE)}
            if series is None
            else looks_of(table, series, kind, names, shape, legend)
        )
        if each is not None:
            looks["detail"] = f"{each}:N"
        if has_names["x"] and series is not None:
            looks["xOffset"] = alt.XOffset(f"{series}:N", sort=list(names or dict.fromkeys(table[series])))
        clip = outside(table[x], x_limits) or outside(table[y], y_limits)
        along = "x" if has_names["y"] else "y"
        layers = mark_layers(table, sides, looks, (low, high), kind, tips, along=along, marks=marks, clip=clip)
        layers += [each for rule in rules for each in rule_layers(rule)]
    chart = alt.layer(*layers, data=table).properties(width=width, height=height)
    if facet is not None:
        order = list(dict.fromkeys(table[facet]))
        header = alt.Header(labelFontWeight="bold", labelLimit=width, labelExpr=WRAPPED)
        chart = chart.facet(facet=alt.Facet(f"{facet}:N", title=None, sort=order, header=header), columns=3)
    return chart.properties(title=title.split("\n")) if title else chart


def is_numeric(values: pd.Series[Any]) -> bool:
    """Return whether a column holds numbers; one without any value counts as numbers."""
    return values.dtype.kind in "iuf" or not values.notna().any()


def outside(values: pd.Series[Any], limits: tuple[float, float] | None) -> bool:
    """Return whether values lie beyond the limits of an axis, where what is drawn must be cut off."""
    return limits is not None and not numbers_of(values).between(*limits).all()


def numbers_of(values: pd.Series[Any]) -> pd.Series[float]:
    """Return the numbers of a column, without gaps."""
    import pandas as pd

    return pd.to_numeric(values, errors="coerce").dropna()


def words(name: object) -> str:
    """Write a column's name as words."""
    return str(name).replace("_", " ")


def ordered(channel: Any, values: pd.Series[Any], name: str, title: str | None) -> Any:
    """Describe an axis of values in the order of the rows."""
    alt = altair()
    axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelLimit=NAMES)
    heading = words(name) if title is None else title
    return channel(f"{name}:O", title=heading, sort=list(dict.fromkeys(values)), axis=axis)


def number_axis(
    channel: Any,
    values: pd.Series[Any],
    name: str,
    title: str | None,
    *,
    log: bool,
    limits: tuple[float, float] | None = None,
    style: str = "",
) -> Any:
    """Describe an axis of numbers; a logarithmic x axis has powers of two, or all of a few values."""
    alt = altair()
    known = numbers_of(values)
    largest = float(known.abs().max()) if len(known) else 0.0
    options: dict[str, Any] = {"labelOverlap": "greedy", "tickCount": 6}
    scale: dict[str, Any] = {"zero": False, "nice": False} if channel is alt.X else {"zero": False}
    if style == "percent":
        options["format"] = ".0%"
    elif largest >= MANY:
        options["format"] = ".3~s"
    if log:
        scale = {"type": "log", "nice": False}
    if log and channel is alt.X and largest < MANY:
        scale["base"] = 2
        options["values"] = log_ticks(known.tolist())
        options["format"] = ","
    if limits is not None:
        scale |= {"domain": list(limits), "nice": False, "zero": False}
    if channel is alt.X:
        scale["padding"] = 6
    heading = words(name) if title is None else title
    return channel(f"{name}:Q", title=heading, scale=alt.Scale(**scale), axis=alt.Axis(**options))


def log_ticks(values: Sequence[float]) -> list[float]:
    """Choose the ticks of a logarithmic axis.

    Example:
        >>> log_ticks([96.0, 128.0, 96.0]), log_ticks(range(3, 30))
        ([96.0, 128.0], [4.0, 8.0, 16.0])
    """
    distinct = sorted({float(value) for value in values if value > 0})
    if len(distinct) <= FEW and all(value.is_integer() for value in distinct):
        return distinct
    powers = 2.0 ** np.arange(np.ceil(np.log2(distinct[0])), np.floor(np.log2(distinct[-1])) + 1)
    return [float(power) for power in powers]


def looks_of(
    table: pd.DataFrame,
    series: str,
    kind: Kind,
    names: Sequence[str] | None,
    shape: str | None,
    listed: bool | Sequence[str],
) -> dict[str, Any]:
    """Give each series its colour and its dash or shape; numbers go from light to dark."""
    alt = altair()
    if is_numeric(table[series]):
        scale = alt.Scale(scheme="viridis", reverse=True)
        legend = alt.Legend(title=words(series), orient="right", format=".3~s")
        return {"color": alt.Color(f"{series}:Q", scale=scale, legend=legend), "detail": f"{series}:N"}
    values = list(names or dict.fromkeys(table[series].astype(str)))
    shown = values if isinstance(listed, bool) else list(listed)
    symbol: dict[str, Any] = {"symbolType": "stroke", "symbolSize": 400} if kind == "line" else {"symbolStrokeWidth": 0}
    columns = 2 if max(map(len, shown), default=0) > 24 else 4
    legend = (
        alt.Legend(title=None, columns=columns, values=shown, labelExpr=WRAPPED, **symbol)
        if listed and len(shown) > 1
        else None
    )
    channels: dict[str, tuple[Any, Sequence[Any]]] = {"color": (alt.Color, PALETTE)}
    if kind == "point" and shape is None and listed:
        channels["shape"] = (alt.Shape, SHAPES)
    elif kind in {"line", "area"}:
        channels["strokeDash"] = (alt.StrokeDash, DASHES)
    found = {
        name: channel(f"{series}:N", scale=cycled(values, looks), legend=legend)
        for name, (channel, looks) in channels.items()
    }
    if shape is not None:
        kinds = list(dict.fromkeys(table[shape]))
        found["shape"] = alt.Shape(f"{shape}:N", scale=cycled(kinds, SHAPES), legend=alt.Legend(title=None, columns=1))
    return found


def cycled(values: Sequence[str], looks: Sequence[Any]) -> Any:
    """Assign looks to values, from the first again where there are more values."""
    return altair().Scale(domain=list(values), range=[looks[k % len(looks)] for k in range(len(values))])


def mark_layers(
    table: pd.DataFrame,
    sides: dict[str, Any],
    looks: dict[str, Any],
    limits: tuple[str | None, str | None],
    kind: Kind,
    tips: list[Any],
    *,
    along: str,
    marks: bool,
    clip: bool,
) -> list[Any]:
    """Draw the marks of a chart of lines, points, bars or areas, with their limits."""
    alt = altair()
    low, high = limits
    chart = alt.Chart()  # the rows are those of the whole, so that facets divide them
    mark = {
        "line": chart.mark_line(strokeWidth=2, clip=clip, point={"size": 36, "clip": clip} if marks else False),
        "point": chart.mark_point(filled=True, size=50, opacity=0.9, clip=clip),
        "bar": chart.mark_bar(),
        "area": chart.mark_area(line={"clip": clip}, opacity=0.3, clip=clip),
    }[kind]
    layers = [mark.encode(**sides, **looks, tooltip=tips)]
    if low is None or high is None:
        return layers
    shown = {name: looks[name] for name in ("color", "xOffset", "detail") if name in looks}
    across = "x" if along == "y" else "y"
    ends = {across: sides[across], along: (alt.X if along == "x" else alt.Y)(f"{low}:Q"), f"{along}2": f"{high}:Q"}
    if kind == "line":
        return [*layers, chart.mark_area(opacity=0.13, clip=True).encode(**ends, **shown)]
    if kind == "bar":
        shown["color"] = alt.value("#222222")
    return [*layers, chart.mark_rule(strokeWidth=1.2, clip=True).encode(**ends, **shown)]


def rule_layers(rule: Rule) -> list[Any]:
    """Draw a dashed line across the chart, and its text at the end of it."""
    alt = altair()
    chart = alt.Chart(alt.Data(values=[{"rule": rule.value, "text": rule.text}]))
    line = chart.mark_rule(color=GREY, strokeDash=[4, 3], strokeWidth=1)
    look = {"color": "#666666", "fontSize": 11}
    if rule.axis == "x":
        place = alt.X("rule:Q")
        text = chart.mark_text(**look, baseline="bottom", dy=-4).encode(x=place, y=alt.value(0), text="text:N")
        return [line.encode(x=place), text] if rule.text else [line.encode(x=place)]
    level = alt.Y("rule:Q")
    text = chart.mark_text(**look, align="right", dy=-6).encode(x=alt.value("width"), y=level, text="text:N")
    return [line.encode(y=level), text] if rule.text else [line.encode(y=level)]


def heat_layers(
    table: pd.DataFrame, x: str, number: str, text: str | None, percent: bool, tips: list[Any]
) -> list[Any]:
    """Draw the cells of a heat map, with their texts, or numbers where there are few columns."""
    alt = altair()
    end = 1.0 if percent else float(numbers_of(table[number]).max())
    style = ".0%" if percent else ",.4~g"
    scale = alt.Scale(domain=[0, end], scheme="viridis")
    legend = alt.Legend(title=words(number), orient="right", format=style)
    chart = alt.Chart()
    cells = chart.mark_rect().encode(color=alt.Color(f"{number}:Q", scale=scale, legend=legend), tooltip=tips)
    if text is None and table[x].nunique() > FEW:
        return [cells]
    field = f"datum[{number!r}]"
    label = f"datum[{text!r}]" if text else f"round(100 * {field})" if percent else f"format({field}, {style!r})"
    ink = alt.condition(f"{field} > {BRIGHT * end}", alt.value("black"), alt.value("white"))
    texts = chart.mark_text(fontSize=11).transform_filter(f"isValid({field})").transform_calculate("label", label)
    return [cells, texts.encode(text="label:N", color=ink)]


def edge_after(columns: pd.Series[Any], rule: Rule) -> list[Any]:
    """Draw a line behind the last column of a heat map that is no farther than a rule's value, and before the next."""
    alt = altair()
    distinct = list(dict.fromkeys(columns))
    inside = [column for column in distinct if column <= rule.value]
    if not inside or len(inside) == len(distinct):
        return []
    chart = alt.Chart(alt.Data(values=[{columns.name: inside[-1]}]))
    line = chart.mark_rule(color="#222222", strokeDash=[4, 3], strokeWidth=2)
    return [line.encode(x=alt.X(f"{columns.name}:O", bandPosition=1, sort=distinct))]


def layer(*charts: Any) -> Any:
    """Draw charts without facets on the same axes, the first beneath."""
    alt = altair()
    parts = []
    for chart in charts:
        for part in chart.layer:
            if part.data is alt.Undefined:
                part.data = chart.data
            parts.append(part)
    whole, first = alt.layer(*parts), charts[0]
    whole.width, whole.height, whole.title = first.width, first.height, first.title
    return whole


def beside(*charts: Any, title: str = "") -> Any:
    """Put charts side by side, each with colours and legends of its own."""
    row = altair().hconcat(*charts).resolve_scale(color="independent", strokeDash="independent", shape="independent")
    return row.properties(title=title.split("\n")) if title else row


def below(*charts: Any, title: str = "") -> Any:
    """Put charts below one another, each with colours and legends of its own."""
    column = altair().vconcat(*charts).resolve_scale(color="independent", strokeDash="independent", shape="independent")
    return column.properties(title=title.split("\n")) if title else column


def themed(chart: Any) -> Any:
    """Set sizes of text that can be read on paper, a white ground and the legend below."""
    text: Any = {"labelFontSize": 12, "titleFontSize": 13, "labelFont": "sans-serif", "titleFont": "sans-serif"}
    legend = {"orient": "bottom", "labelLimit": 420, "symbolLimit": 28, "symbolStrokeWidth": 2, "symbolOpacity": 1}
    return (
        chart.configure(background="white", font="sans-serif")
        .configure_axis(**text, titleFontWeight="normal", gridColor="#eeeeee")
        .configure_legend(**text, **legend)
        .configure_title(fontSize=13, anchor="start", offset=14)
        .configure_view(strokeWidth=0)
    )


def save(chart: Any, path: Path) -> None:
    """Write a chart in the format that the suffix names: .png, .svg, or .html for a page that needs no network.

    Raises: ConfigError for another suffix, or where the file cannot be written.
    """
    altair()
    import vl_convert

    if path.suffix not in {".png", ".svg", ".html"}:
        raise ConfigError(f"{path}: must end in .png, .svg or .html; rename the picture")
    spec = themed(chart if path.suffix != ".html" else chart.interactive()).to_dict()
    with writing(str(path), "picture with -o"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            write_atomic(path, vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
        elif path.suffix == ".svg":
            write_atomic(path, vl_convert.vegalite_to_svg(spec).encode())
        else:
            write_atomic(path, vl_convert.vegalite_to_html(spec, bundle=True).encode())
