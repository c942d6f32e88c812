"""Charts of a table's rows, joined and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lab.draw.parts import (
    BLUE,
    WRAPPED,
    Kind,
    Rule,
    altair,
    axis,
    edge_after,
    heat_layers,
    is_numeric,
    looks_of,
    outside,
    rule_layers,
    words,
)
from lab.errors import ConfigError
from lab.files import write_atomic, writing

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = "pd.DataFrame | Sequence[Mapping[str, Any]]"
WIDTH, HEIGHT = 480, 280  # pixels of one chart
PNG_SCALE = 2.0


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
    named_x = kind in {"bar", "heat"} or not is_numeric(table[x])
    named_y = kind == "heat" or not is_numeric(table[y])
    sides = {
        "x": axis(alt.X, table[x], x_title, named=named_x, log=log_x, limits=x_limits),
        "y": axis(alt.Y, table[y], y_title, named=named_y, log=log_y, limits=y_limits, percent=percent),
    }
    if kind == "heat":
        layers = [part.encode(**sides) for part in heat_layers(table, series or "score", text, percent, tips)]
        layers += [edge for rule in rules if rule.axis == "x" for edge in edge_after(table[x], rule)]
    else:
        looks: dict[str, Any] = {"color": alt.value(color or BLUE)}
        if series is not None:
            looks = looks_of(table, series, kind, names, legend, shape)
            if named_x:
                looks["xOffset"] = alt.XOffset(f"{series}:N", sort=list(names or dict.fromkeys(table[series])))
        if each is not None:
            looks["detail"] = f"{each}:N"
        clip = outside(table[x], x_limits) or outside(table[y], y_limits)
        chart = alt.Chart()  # the rows are those of the whole, so that facets divide them
        points = {"size": 36, "clip": clip} if marks else False
        mark = {
            "line": chart.mark_line(strokeWidth=2, clip=clip, point=points),
            "point": chart.mark_point(filled=True, size=50, opacity=0.9, clip=clip),
            "bar": chart.mark_bar(),
        }[kind]
        layers = [mark.encode(**sides, **looks, tooltip=tips)]
        if low is not None and high is not None:
            ends = (alt.X if named_y else alt.Y)(f"{low}:Q")
            limits = {"x": ends, "x2": f"{high}:Q", "y": sides["y"]} if named_y else {"y": ends, "y2": f"{high}:Q"}
            shown = {name: looks[name] for name in ("color", "xOffset", "detail") if name in looks}
            if kind == "bar":
                shown["color"] = alt.value("#222222")
            band = {"line": chart.mark_area(opacity=0.13, clip=True)}.get(
                kind, chart.mark_rule(strokeWidth=1.2, clip=True)
            )
            layers.append(band.encode(**{"x": sides["x"], **limits}, **shown))
        layers += [part for rule in rules for part in rule_layers(rule)]
    whole = alt.layer(*layers, data=table).properties(width=width, height=height)
    if facet is not None:
        order = list(dict.fromkeys(table[facet]))
        header = alt.Header(labelFontWeight="bold", labelLimit=width, labelExpr=WRAPPED)
        whole = whole.facet(facet=alt.Facet(f"{facet}:N", title=None, sort=order, header=header), columns=3)
    return whole.properties(title=title.split("\n")) if title else whole


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
    return joined(altair().hconcat(*charts), title)


def below(*charts: Any, title: str = "") -> Any:
    """Put charts below one another, each with colours and legends of its own."""
    return joined(altair().vconcat(*charts), title)


def joined(charts: Any, title: str) -> Any:
    """Keep the looks of joined charts apart."""
    own = charts.resolve_scale(color="independent", strokeDash="independent", shape="independent")
    return own.properties(title=title.split("\n")) if title else own


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
