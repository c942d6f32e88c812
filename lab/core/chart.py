"""Pictures: one chart from a table's rows, as PNG or SVG; eval.report puts charts on a page.

    chart = draw(rows, "distance", "score", series="method", low="low", high="high", rules=[Rule("x", 2048, "window")])
    save(below(chart, draw(rows, "distance", "f", log_y=True)), Path("curve.png"))

Colours are safe for the colour-blind (Okabe, Ito 2008), and series also differ in dash or shape. A series of numbers,
such as layers, is drawn from light to dark instead.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lab.core import chart_style as looks
from lab.core.chart_style import BLUE, GREY, NAMES, Rule, altair, words
from lab.core.errors import ConfigError
from lab.core.files import write_atomic, writing

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GREY", "NAMES", "Rule", "altair", "below", "beside", "draw", "layer", "save", "themed", "words"]
Rows: TypeAlias = "pd.DataFrame | Sequence[Mapping[str, Any]]"


def draw(
    rows: Rows,
    x: str,
    y: str,
    series: str | None = None,
    facet: str | None = None,
    low: str | None = None,
    high: str | None = None,
    kind: Literal["line", "point", "bar", "heat"] = "line",
    *,
    log_x: bool = False,
    log_y: bool = False,
    title: str = "",
    x_title: str | None = None,
    y_title: str | None = None,
    x_limits: tuple[float, float] | None = None,
    y_limits: tuple[float, float] | None = None,
    percent: bool = False,
    color: str = BLUE,
    names: Sequence[str] | None = None,
    legend: bool | Sequence[str] = True,
    outcome: str | None = None,
    text: str | None = None,
    rules: Sequence[Rule] = (),
    marks: bool = True,
    width: int = 480,
    height: Any = 280,
    columns: int = 3,
) -> Any:
    """Draw rows as one chart; a row without x or y leaves a gap.

    `low` and `high` are columns of limits: a band of a line, a bar of a point. Points may have names on one axis, x or
    y, and are marked by their column `outcome` (chart_style.py) if any. A `heat` map has ordered columns `x`, rows
    `y`, and the numbers `series` in the cells, or their `text`. `percent` writes y, or the cells, as percent. `names`
    are the series in the order of their colours, `legend` those that it lists. `marks` shows the points of lines.
    `facet` gives each value a chart of its own, `columns` side by side. `height` is in pixels, or {"step": pixels}
    of a row with a name.
    """
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(rows)
    tips = [alt.Tooltip(str(name), title=words(name)) for name in table.columns if table[name].notna().any()]
    named_x = kind in {"bar", "heat"} or not looks.is_numeric(table[x])
    named_y = kind == "heat" or not looks.is_numeric(table[y])
    sides = {
        "x": looks.axis("x", table[x], x_title, named=named_x, log=log_x, limits=x_limits),
        "y": looks.axis("y", table[y], y_title, named=named_y, log=log_y, limits=y_limits, percent=percent),
    }
    if kind == "heat":
        parts = looks.heat_layers(table, (x, y), series or "score", text, percent, tips)
        layers = [part.encode(**sides) for part in parts]
        layers += [edge for rule in rules if rule.axis == "x" for edge in looks.edge_after(table[x], rule.value)]
    else:
        style: dict[str, Any] = {"color": alt.value(color)}
        if series is not None:
            style = looks.looks_of(table, series, kind, names, legend, outcome, "x" if named_y else "y")
            if named_x:
                style["xOffset"] = alt.XOffset(f"{series}:N", sort=list(names or dict.fromkeys(table[series])))
        chart = alt.Chart()  # the rows are those of the whole, so that facets divide them
        mark = {
            "line": chart.mark_line(strokeWidth=2, point={"size": 36} if marks else False),
            "point": chart.mark_point(filled=True, size=50, opacity=0.9),
            "bar": chart.mark_bar(),
        }[kind]
        layers = [mark.encode(**sides, **style, tooltip=tips)]
        if low is not None and high is not None:
            band = chart.mark_area(opacity=0.13, clip=True)
            ends = band if kind == "line" else chart.mark_rule(strokeWidth=1.2, clip=True)
            side = "x" if named_y else "y"
            look = {name: style[name] for name in ("color", "xOffset") if name in style}
            look |= {"color": alt.value("#222222")} if kind == "bar" else {}
            layers.append(ends.encode(**{**sides, side: f"{low}:Q", f"{side}2": f"{high}:Q"}, **look))
        named = [rule for rule in rules if rule.axis == "x" and rule.text]  # whose texts stand one above the other
        above = {id(rule): place for place, rule in enumerate(named)}
        layers += [part for rule in rules for part in looks.rule_layers(rule, above.get(id(rule), 0))]
    whole = alt.layer(*layers, data=table).properties(width=width, height=height)
    if facet is not None:
        header = alt.Header(labelFontWeight="bold", labelLimit=width, labelExpr=looks.WRAPPED)
        by = alt.Facet(f"{facet}:N", title=None, sort=list(dict.fromkeys(table[facet])), header=header)
        whole = whole.facet(facet=by, columns=columns)
    offset = looks.LINE * max(1, sum(rule.axis == "x" and bool(rule.text) for rule in rules))
    return whole.properties(title=alt.TitleParams(title.split("\n"), offset=offset)) if title else whole


def layer(*charts: Any) -> Any:
    """Draw charts without facets on the same axes, the first beneath."""
    alt = altair()
    parts = [(part, chart.data) for chart in charts for part in chart.layer]
    layers = [part.properties(data=data) if part.data is alt.Undefined else part for part, data in parts]
    return alt.layer(*layers, width=charts[0].width, height=charts[0].height, title=charts[0].title)


def beside(*charts: Any, title: str = "") -> Any:
    """Put charts side by side, each with colours and legends of its own."""
    return apart(altair().hconcat(*charts), title)


def below(*charts: Any, title: str = "") -> Any:
    """Put charts below one another, each with colours and legends of its own."""
    return apart(altair().vconcat(*charts), title)


def apart(charts: Any, title: str) -> Any:
    """Keep the looks of joined charts apart."""
    joined = charts.resolve_scale(color="independent", strokeDash="independent", shape="independent")
    return joined.properties(title=title.split("\n")) if title else joined


def themed(chart: Any) -> Any:
    """Set sizes of text that can be read on paper, a white ground and the legend below."""
    text: Any = {"labelFontSize": 12, "titleFontSize": 13}
    legend = {"orient": "bottom", "labelLimit": 420, "symbolLimit": 28, "symbolOpacity": 1}
    return (
        chart.configure(background="white", font="sans-serif")
        .configure_axis(**text, titleFontWeight="normal", gridColor="#eeeeee")
        .configure_legend(**text, **legend)
        .configure_title(fontSize=13, anchor="start", offset=14)
        .configure_view(strokeWidth=0)
    )


def save(chart: Any, path: Path) -> None:
    """Write a chart as its suffix says, .png or .svg, refusing any other, or a file that cannot be written."""
    altair()
    import vl_convert

    if path.suffix not in {".png", ".svg"}:
        raise ConfigError(f"{path}: must end in .png or .svg; rename the picture")
    spec = themed(chart).to_dict()
    with writing(str(path), "picture with -o"):
        is_png = path.suffix == ".png"
        data = vl_convert.vegalite_to_png(spec, scale=2.0) if is_png else vl_convert.vegalite_to_svg(spec).encode()
        write_atomic(path, data)
