"""Pictures: charts from a table's rows, as PNG or SVG; eval.report puts them on a page.

    accuracy = Axis("score", "retrieval accuracy", percent=True, limits=(0, 1))
    chart = plot_lines(rows, "distance", accuracy, "method", limits=True, rules=[Rule("x", 2048, "window")])
    save_chart(concat(chart, plot_lines(rows, "distance", Axis("f", log=True))), Path("curve.png"))

Colours are safe for the colour-blind (Okabe, Ito 2008), and series also differ in dash or shape. A series of numbers,
such as layers, goes from light to dark instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lab.core import chart_style
from lab.core.chart_style import BLUE, GREY, LINE, NAMES, WRAPPED, Axis, Rule, altair, words
from lab.core.errors import ConfigError
from lab.core.files import write_atomic, writing

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    Chart: TypeAlias = alt.LayerChart | alt.FacetChart | alt.ConcatChart

__all__ = ["GREY", "NAMES", "Axis", "Rule", "altair", "words"]
Rows: TypeAlias = "pd.DataFrame | Sequence[Mapping[str, object]]"


def plot_lines(
    rows: Rows,
    x: Axis | str,
    y: Axis | str,
    series: str | None = None,
    *,
    points: bool = False,
    limits: bool = False,
    marks: bool = True,
    names: Sequence[str] | None = None,
    legend: bool = True,
    rules: Sequence[Rule] = (),
    title: str = "",
    color: str = BLUE,
    width: int = 480,
    height: int | Mapping[str, int] = 280,
) -> alt.LayerChart:
    """Plot a line for each series, or its points alone; a row without x or y leaves a gap.

    `limits` are the columns low and high: a band of a line, a bar of a point. Points may have names on one axis, x or
    y, and are marked by their column outcome (chart_style.py) if any. `names` are the series in the order of their
    colours. `marks` shows the points of lines. `height` is in pixels, or {"step": pixels} of a row with a name.
    """
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(rows)
    x_axis, y_axis = (chart_style.build_axis(side, table, axis) for side, axis in (("x", x), ("y", y)))
    is_named = y_axis["shorthand"].endswith(":O")
    colors, shapes = [alt.ColorValue(color)], []
    if series is not None:
        side: Literal["x", "y"] = "x" if is_named else "y"
        colors[0], *shapes = chart_style.build_series(table, series, names, side, points=points, listed=legend)
        if x_axis["shorthand"].endswith(":O"):
            colors.append(alt.XOffset(f"{series}:N", sort=list(names or dict.fromkeys(table[series]))))
    chart = alt.Chart()  # the rows are those of the outer chart, so that facets divide them
    if points:
        mark = chart.mark_point(filled=True, size=50, opacity=0.9)
        bars = chart.mark_rule(strokeWidth=1.2, clip=True)
    else:
        mark = chart.mark_line(strokeWidth=2, point={"size": 36} if marks else False)
        bars = chart.mark_area(opacity=0.13, clip=True)
    layers = [mark.encode(x_axis, y_axis, *colors, *shapes, tooltip=chart_style.list_tips(table))]
    if limits:
        ends = [x_axis, alt.Y("low:Q"), alt.Y2("high:Q")]
        if is_named:
            ends = [alt.X("low:Q"), alt.X2("high:Q"), y_axis]
        layers.append(bars.encode(*ends, *colors))
    n_texts = 0  # of vertical rules; they are above the chart, one above the other
    for rule in rules:
        layers += chart_style.plot_rule(rule, n_texts)
        n_texts += rule.axis == "x" and bool(rule.text)
    full = alt.layer(*layers, data=table).properties(width=width, height=height)
    if title:
        full = full.properties(title=alt.TitleParams(title.split("\n"), offset=LINE * max(1, n_texts)))
    return full


def plot_heat(
    rows: Rows,
    x: Axis | str,
    y: Axis | str,
    cells: str,
    *,
    percent: bool = False,
    rules: Sequence[Rule] = (),
    title: str = "",
    width: int = 480,
    height: int = 280,
) -> alt.LayerChart:
    """Plot a number for each x and y, which are in the order of the rows, with the number or the column text in it."""
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(rows)
    axes = [chart_style.build_axis(side, table, axis, named=True) for side, axis in (("x", x), ("y", y))]
    layers = [part.encode(*axes) for part in chart_style.plot_cells(table, axes, cells, percent=percent)]
    for rule in rules:
        layers += chart_style.plot_edge(axes[0], rule.value)
    full = alt.layer(*layers, data=table).properties(width=width, height=height)
    return full.properties(title=title.split("\n")) if title else full


def facet(chart: alt.LayerChart, by: str, columns: int = 3) -> alt.FacetChart:
    """Give each value of a column of the rows a chart of its own, `columns` side by side."""
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(chart.data)
    header = alt.Header(labelFontWeight="bold", labelLimit=chart.width, labelExpr=WRAPPED)
    values = list(dict.fromkeys(table[by]))
    return chart.facet(facet=alt.Facet(f"{by}:N", title=None, sort=values, header=header), columns=columns)


def layer(*charts: alt.LayerChart) -> alt.LayerChart:
    """Plot charts on the same axes, the first beneath."""
    alt = altair()
    layers = []
    for chart in charts:
        for part in chart.layer:
            # Layers of rows share the data of their chart, which the joint chart does not have.
            layers.append(part.properties(data=chart.data) if part.data is alt.Undefined else part)
    return alt.layer(*layers, width=charts[0].width, height=charts[0].height, title=charts[0].title)


def concat(*charts: Chart, columns: int = 1, title: str = "") -> alt.ConcatChart:
    """Join charts, `columns` side by side, each with colours and legends of its own."""
    # Altair's default shares the scales of joined charts, which would give one series the colour of another.
    joined = altair().concat(*charts, columns=columns)
    channels = ("color", "strokeDash", "shape", "xOffset")
    joined = joined.resolve_scale(**dict.fromkeys(channels, "independent"))
    return joined.properties(title=title.split("\n")) if title else joined


def set_theme(chart: Chart) -> Chart:
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


def save_chart(chart: Chart, path: Path) -> None:
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
