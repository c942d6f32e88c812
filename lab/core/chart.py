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
from typing import TYPE_CHECKING, TypeAlias

from lab.core import chart_style
from lab.core.chart_style import BLUE, GREY, LINE, TIPS, WRAPPED, Axis, Rule, altair, words
from lab.core.errors import ConfigError
from lab.core.files import write_atomic, writing

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    Chart: TypeAlias = alt.LayerChart | alt.FacetChart | alt.ConcatChart

__all__ = ["GREY", "Axis", "Rule", "altair", "words"]
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
    height: int = 280,
) -> alt.LayerChart:
    """Plot a line for each series, or its points alone; a row without x or y leaves a gap.

    `limits` are the columns low and high: a band of a line, a bar of a point. Points are marked by their column outcome
    (chart_style.py) if any. `names` are the series in the order of their colours. `marks` shows the points of lines.
    `width` and `height` are in pixels.
    """
    import pandas as pd

    alt = altair()
    table = pd.DataFrame(rows)
    x_axis, y_axis = (chart_style.build_axis(side, table, axis) for side, axis in (("x", x), ("y", y)))
    channels = [alt.ColorValue(color)]
    if series is not None:
        channels = chart_style.build_series(table, series, names, points=points, listed=legend)
    chart = alt.Chart()  # the rows are those of the outer chart, so that facets divide them
    mark, bars = chart.mark_line(point=marks, tooltip=TIPS), chart.mark_area(opacity=0.13, clip=True)
    if points:
        mark, bars = chart.mark_point(filled=True, tooltip=TIPS), chart.mark_rule(clip=True)
    layers = [mark.encode(x_axis, y_axis, *channels)]
    if limits:
        layers.append(bars.encode(x_axis, alt.Y("low:Q"), alt.Y2("high:Q"), channels[0]))
    n_texts = 0  # of vertical rules; they are above the chart, one above the other
    for rule in rules:
        layers += chart_style.plot_rule(rule, n_texts)
        n_texts += rule.axis == "x" and bool(rule.text)
    heading = alt.TitleParams(title, offset=LINE * max(1, n_texts))
    return alt.layer(*layers, data=table, width=width, height=height, title=heading)


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
    size = max(len(axis["sort"]) for axis in axes)
    layers = [part.encode(*axes) for part in chart_style.plot_cells(table, size, cells, percent=percent)]
    columns = axes[0]["sort"]
    for rule in rules:
        # Between the last column that is at most the value, and the next.
        inside = [column for column in columns if column <= rule.value]
        if 0 < len(inside) < len(columns):
            line = alt.Chart(alt.Data(values=[{}])).mark_rule(color="#222222", strokeDash=[4, 3], strokeWidth=2)
            layers.append(line.encode(alt.XDatum(inside[-1], bandPosition=1, type="ordinal")))
    return alt.layer(*layers, data=table, width=width, height=height, title=title)


def facet(chart: alt.LayerChart, by: str, columns: int = 3) -> alt.FacetChart:
    """Give each value of a column of the rows a chart of its own, `columns` side by side."""
    import pandas as pd

    alt = altair()
    header = alt.Header(labelFontWeight="bold", labelLimit=chart.width, labelExpr=WRAPPED)
    values = list(dict.fromkeys(pd.DataFrame(chart.data)[by]))
    return chart.facet(facet=alt.Facet(f"{by}:N", title=None, sort=values, header=header), columns=columns)


def layer(*charts: alt.LayerChart) -> alt.LayerChart:
    """Plot charts on the same axes, the first beneath."""
    return altair().layer(*charts)


def concat(*charts: Chart, columns: int = 1, title: str = "") -> alt.ConcatChart:
    """Join charts, `columns` side by side, each with colours and legends of its own."""
    # Altair's default shares the scales of joined charts, which would give one series the colour of another.
    joined = altair().concat(*charts, columns=columns, title=title)
    channels = ("color", "strokeDash", "shape")
    return joined.resolve_scale(**dict.fromkeys(channels, "independent"))


def set_theme(chart: Chart) -> Chart:
    """Set sizes of text that can be read on paper, a white ground, the legend below, and eight colours."""
    sizes = {"labelFontSize": 12, "titleFontSize": 13}
    # They can be seen on white and black.
    palette = [BLUE, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#aa4499", "#96b45a"]
    return chart.configure(
        background="white",
        lineBreak="\n",
        font="sans-serif",
        range={"category": palette},
        axis={**sizes, "titleFontWeight": "normal", "gridColor": "#eeeeee", "labelOverlap": "greedy"},
        axisX={"labelSeparation": 8},
        axisDiscrete={"labelAngle": 0, "labelLimit": 220},
        legend={**sizes, "orient": "bottom", "labelLimit": 420, "symbolLimit": 28, "symbolOpacity": 1},
        title={"fontSize": 13, "anchor": "start", "offset": LINE},
        view={"strokeWidth": 0},
        point={"size": 50, "opacity": 0.9},
        text={"fontSize": 11},
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
