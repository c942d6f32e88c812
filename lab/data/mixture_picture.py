"""One picture of an upsampling: lengths, and the sources with their long documents, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.plots import canvas

BEFORE, AFTER, DARK = "#b8b8b8", "#3366aa", "#333333"
MOST_SOURCES = 10  # the rest is drawn as one
HALF = 0.38  # width of a bar; two share a unit
ROOM = 1.06  # above the bars, for the annotation
MOST_LETTERS = 28  # of a source's name


def draw_mixture(record: dict[str, Any], output: Path) -> None:
    """Draw a record of lab.data.mixture.record_of.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 11, 4.2) as figure:
        left, right = figure.subplots(1, 2)
        draw_lengths(left, record)
        draw_sources(right, record)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False)


def draw_lengths(axes: Any, record: dict[str, Any]) -> None:
    """Draw the share of tokens by length, a pair of bars for each power of two."""
    rows, total = record["histogram"], record["all"]["tokens"]
    first = rows[0]["from"].bit_length() - 1
    for when, color, side in (("before", BEFORE, -1), ("after", AFTER, 0)):
        places = [place + 0.5 + side * HALF for place in range(len(rows))]
        shares = [row["tokens"][when] / max(1, total[when]) for row in rows]
        axes.bar(places, shares, HALF, align="edge", color=color, label=when)
    edge = record["longer_than"]
    exponent = edge.bit_length() - 1
    place = exponent - first + (edge / 2**exponent - 1)
    if 0 < place < len(rows):
        axes.axvline(place, color=DARK, linestyle=":", linewidth=1)
        above = {"xycoords": ("data", "axes fraction"), "xytext": (3, 0), "textcoords": "offset points"}
        axes.annotate(f"long: over {edge:,}", (place, 1), va="top", color=DARK, **above)
    axes.set_ylim(0, axes.get_ylim()[1] * ROOM)
    step = 1 + len(rows) // 16
    axes.set_xticks(range(0, len(rows) + 1, step), [short(2 ** (first + k)) for k in range(0, len(rows) + 1, step)])
    axes.set(title="lengths", xlabel="tokens of a document", ylabel="share of all tokens")
    percent(axes.yaxis)


def draw_sources(axes: Any, record: dict[str, Any]) -> None:
    """Draw each source's share of tokens before and after, the part in long documents filled."""
    rows = grouped(record["sources"])
    for when, color, side in (("before", BEFORE, 0), ("after", AFTER, 1)):
        places = [-place - side * HALF for place in range(len(rows))]
        shares = [row["share_of_tokens"][when] for row in rows]
        long = [row["share_of_tokens"][when] * row["long"][when] for row in rows]
        axes.barh(places, shares, HALF * 0.92, color="none", edgecolor=color, linewidth=1)
        axes.barh(places, long, HALF * 0.92, color=color, edgecolor=color, linewidth=1)
    axes.set_yticks([-place - HALF / 2 for place in range(len(rows))], [name(row["source"]) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set(title="sources (filled: in long documents)", xlabel="share of all tokens")
    percent(axes.xaxis)


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the largest sources and sum the rest."""
    if len(rows) <= MOST_SOURCES:
        return rows
    rest = rows[MOST_SOURCES - 1 :]
    share = {when: sum(row["share_of_tokens"][when] for row in rest) for when in ("before", "after")}
    long = {
        when: sum(row["share_of_tokens"][when] * row["long"][when] for row in rest) / max(share[when], 1e-12)
        for when in share
    }
    return [*rows[: MOST_SOURCES - 1], {"source": f"{len(rest)} others", "share_of_tokens": share, "long": long}]


def name(source: str) -> str:
    """Shorten a long name."""
    return source if len(source) <= MOST_LETTERS else f"{source[: MOST_LETTERS - 1]}…"


def percent(axis: Any) -> None:
    """Format an axis in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1))


def short(length: int) -> str:
    """Format a power of two: 512, 4K, 1M."""
    for size, unit in ((2**20, "M"), (2**10, "K")):
        if length >= size:
            return f"{length // size}{unit}"
    return str(length)
