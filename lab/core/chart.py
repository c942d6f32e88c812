"""Pictures: one chart from a table's rows, as PNG or SVG; eval.report puts charts on a page.

    chart = plot_rows(rows, "distance", "score", "method", low="low", high="high", rules=[Rule("x", 2048, "window")])
    save(vconcat(chart, plot_rows(rows, "distance", "f", log_y=True)), Path("curve.png"))

Colours are safe for the colour-blind (Okabe, Ito 2008), and series also differ in dash or shape. A series of numbers,
such as layers, goes from light to dark instead.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lab.core import chart_style
from lab.core.chart_style import BLUE, GREY, NAMES, Rule, altair, words
from lab.core.errors import ConfigError
from lab.core.files import write_atomic, writing

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GREY", "NAMES", "Rule", "altair", "hconcat", "layer", "plot_rows", "save", "set_theme", "vconcat", "words"]
Rows: TypeAlias = "pd.DataFrame | Sequence[Mapping[str, Any]]"


def plot_rows(
    rows: Rows,
    x: str,
    y: str,
    series: str | None = None,
    facet: str | None = None,
    low: str | None = None,
    high: str | None = None,
    kind: Literal["line", "point", "heat"] = "line",
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
    legend: bool = True,
    outcome: str | None = None,
    text: str | None = None,
    rules: Sequence[Rule] = (),
    marks: bool = True,
    width: int = 480,
    height: Any = 280,
    columns: int = 3,
) -> Any:
    """Plot rows as one chart; a row without x or y leaves a gap.

    `low` and `high` are columns of limits: a band of a line, a bar of a point. Points may have names on one axis, x or
    y, and are marked by their column `outcome` (chart_style.py) if any. A `heat` map has ordered columns `x`, rows
    `y`, and the numbers `series` in the cells, or their `text`. `percent` writes y, or the cells, as percent. `names`
    are the series in the order of their colours. `marks` shows the points of lines.
    `facet` gives each value a chart of its own, `columns` side by side. `height` is in pixels, or {"step": pixels}
    of a row with a name.
    """
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(rows)
    tips = [alt.Tooltip(str(name), title=words(name)) for name in table.columns if table[name].notna().any()]
    named_x = kind == "heat" or not chart_style.is_numeric(table[x])
    named_y = kind == "heat" or not chart_style.is_numeric(table[y])
    x_axis = chart_style.build_axis("x", table[x], x_title, named=named_x, log=log_x, limits=x_limits)
    y_axis = chart_style.build_axis("y", table[y], y_title, named=named_y, log=log_y, limits=y_limits, percent=percent)
    if kind == "heat":
        cells = chart_style.plot_cells(table, (x, y), series or "score", text, percent, tips)
        layers = [part.encode(x_axis, y_axis) for part in cells]
    else:
        colors = [alt.ColorValue(color)]
        shapes: list[Any] = []
        if series is not None:
            side: Literal["x", "y"] = "x" if named_y else "y"
            colors[0], *shapes = chart_style.build_series(table, series, kind, names, legend, outcome, side)
            if named_x:
                colors.append(alt.XOffset(f"{series}:N", sort=list(names or dict.fromkeys(table[series]))))
        chart = alt.Chart()  # the rows are those of the outer chart, so that facets divide them
        mark = chart.mark_point(filled=True, size=50, opacity=0.9)
        limits = chart.mark_rule(strokeWidth=1.2, clip=True)
        if kind == "line":
            mark = chart.mark_line(strokeWidth=2, point={"size": 36} if marks else False)
            limits = chart.mark_area(opacity=0.13, clip=True)
        layers = [mark.encode(x_axis, y_axis, *colors, *shapes, tooltip=tips)]
        if low is not None and high is not None:
            ends = [x_axis, alt.Y(f"{low}:Q"), alt.Y2(f"{high}:Q")]
            if named_y:
                ends = [alt.X(f"{low}:Q"), alt.X2(f"{high}:Q"), y_axis]
            layers.append(limits.encode(*ends, *colors))
    n_texts = 0  # of vertical rules; they are above the chart, one above the other
    for rule in rules:
        if kind != "heat":
            layers += chart_style.plot_rule(rule, n_texts)
        elif rule.axis == "x":
            layers += chart_style.plot_edge(table[x], rule.value)
        n_texts += rule.axis == "x" and bool(rule.text)
    full = alt.layer(*layers, data=table).properties(width=width, height=height)
    if facet is not None:
        header = alt.Header(labelFontWeight="bold", labelLimit=width, labelExpr=chart_style.WRAPPED)
        by = alt.Facet(f"{facet}:N", title=None, sort=list(dict.fromkeys(table[facet])), header=header)
        full = full.facet(facet=by, columns=columns)
    if title:
        full = full.properties(title=alt.TitleParams(title.split("\n"), offset=chart_style.LINE * max(1, n_texts)))
    return full


def layer(*charts: Any) -> Any:
    """Plot charts without facets on the same axes, the first beneath."""
    alt = altair()
    layers = []
    for chart in charts:
        for part in chart.layer:
            # Layers of rows share the data of their chart, which the joint chart does not have.
            layers.append(part.properties(data=chart.data) if part.data is alt.Undefined else part)
    return alt.layer(*layers, width=charts[0].width, height=charts[0].height, title=charts[0].title)


def hconcat(*charts: Any, title: str = "") -> Any:
    """Join charts side by side, each with colours and legends of its own."""
    return use_own_scales(altair().hconcat(*charts), title)


def vconcat(*charts: Any, title: str = "") -> Any:
    """Join charts below one another, each with colours and legends of its own."""
    return use_own_scales(altair().vconcat(*charts), title)


def use_own_scales(charts: Any, title: str) -> Any:
    # Altair's default shares the scales of joined charts, which would give one series the colour of another.
    joined = charts.resolve_scale(color="independent", strokeDash="independent", shape="independent")
    return joined.properties(title=title.split("\n")) if title else joined


def set_theme(chart: Any) -> Any:
    """Set sizes of text that can be read on paper, a white ground and the legend below."""
    return (
        chart.configure(background="white", font="sans-serif")
        .configure_axis(labelFontSize=12, titleFontSize=13, titleFontWeight="normal", gridColor="#eeeeee")
        .configure_legend(
            labelFontSize=12, titleFontSize=13, orient="bottom", labelLimit=420, symbolLimit=28, symbolOpacity=1
        )
        .configure_title(fontSize=13, anchor="start", offset=14)
        .configure_view(strokeWidth=0)
    )


def save(chart: Any, path: Path) -> None:
    """Write a chart as its suffix says, .png or .svg, rejecting any other, or a file that cannot be written."""
    altair()
    import vl_convert

    if path.suffix not in {".png", ".svg"}:
        raise ConfigError(f"{path}: must end in .png or .svg; rename the picture")
    spec = set_theme(chart).to_dict()
    with writing(str(path), "picture with -o"):
        if path.suffix == ".png":
            write_atomic(path, vl_convert.vegalite_to_png(spec, scale=2.0))
        else:
            write_atomic(path, vl_convert.vegalite_to_svg(spec).encode())
