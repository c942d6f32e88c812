"""Parts shared by the evaluations' pictures: axes in tokens, shares as text, names of curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.plots import GREY, line_look

LEAST = 1e-5  # share that is written out
ROUND = 64  # tokens; a length that is a multiple is marked at its quarters
MARKERS = "osD^vP*X"
FEW = 12  # columns of a heat map up to which every cell shows its number


def tick_tokens(axis: Any, end: float) -> None:
    """Put a few whole numbers of tokens on an axis from 0 to `end`, quarters where they are round."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    few = MaxNLocator(5, integer=True, min_n_ticks=1)
    axis.set_major_locator(MultipleLocator(end / 4) if end and end % ROUND == 0 else few)
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def power_axis(axis: Any) -> None:
    """Scale an axis by powers of two and write them out."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.axes.set_xscale("log", base=2)
    axis.set_major_locator(LogLocator(base=2, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def percent(share: float) -> str:
    """Write a share with two digits.

    Example:
        >>> percent(1.0), percent(0.256), percent(0.0123), percent(0.00021), percent(3e-6), percent(0.0)
        ('100%', '26%', '1.2%', '0.021%', '<0.001%', '0%')
    """
    if 0 < share < LEAST:
        return f"<{100 * LEAST:g}%"
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def name_of(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Name a row's curve by its method, and by model, checkpoint and precision where those differ.

    Example:
        >>> one, two = ({"model": "a", "checkpoint": c, "precision": "float32", "method": "rope+plain"} for c in "xy")
        >>> name_of(one, [one, two]), name_of(one, [one])
        ('rope+plain, x', 'rope+plain')
    """
    apart = [key for key in ("model", "checkpoint", "precision") if len({other[key] for other in rows}) > 1]
    return ", ".join([row["method"], *(str(row[key]) for key in apart)])


def curves_of(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Gather rows by the names of their curves, each by rising length."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["length"]):
        curves.setdefault(name_of(row, rows), []).append(row)
    return curves


def draw_curves(figure: Any, rows: Sequence[dict[str, Any]], title: str, factor: float = 1) -> Any:
    """Draw a line with its limits for each model and method over length, in powers of two, and return the axes."""
    axes, curves = figure.subplots(), curves_of(rows)
    for number, (name, curve) in enumerate(curves.items()):
        lengths, scores = [row["length"] for row in curve], [factor * row["score"] for row in curve]
        look = line_look(number, len(curves))
        size = 3 + 2 * look["linewidth"]
        (line,) = axes.plot(lengths, scores, marker=MARKERS[number % len(MARKERS)], markersize=size, label=name, **look)
        known = [row for row in curve if row["low"] is not None]
        low, high = ([factor * row[key] for row in known] for key in ("low", "high"))
        axes.fill_between([row["length"] for row in known], low, high, color=line.get_color(), alpha=0.12, lw=0)
    axes.set_xscale("log", base=2)
    axes.set_title(title, fontsize=9, pad=16)
    figure.legend(loc="outside lower center", ncols=1 if len(curves) < 4 else 2, frameon=False)
    return axes


def mark_window(axes: Any, train_len: int | None, first: int, last: int) -> None:
    """Mark the training window where it lies between two lengths."""
    if train_len is not None and first <= train_len <= last:
        axes.axvline(train_len, color=GREY, linestyle="--", linewidth=1)
        above = {"xycoords": ("data", "axes fraction"), "xytext": (0, 3), "textcoords": "offset points"}
        axes.annotate(f"training window {train_len:,}", (train_len, 1), ha="center", color=GREY, **above)


def mark_window_between(panels: Sequence[Any], train_len: int | None, lengths: Sequence[int], **style: Any) -> str:
    """Mark the training window between the columns of heat maps, and return a note for the title."""
    if train_len is None or not lengths[0] <= train_len < lengths[-1]:
        return ""
    place = sum(n <= train_len for n in lengths) - 0.5
    for axes in panels:  # dashes on white, which dark cells show too
        axes.axvline(place, color="white", linewidth=2.5)
        axes.axvline(place, color="#222222", linestyle="--", **style)
    return f"\nright of the line: beyond the training window of {train_len:,}"


def ink_on(image: Any, value: float) -> str:
    """Choose black or white, whichever has more contrast with a cell's colour (WCAG 2.1, relative luminance)."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in image.cmap(image.norm(value))[:3]
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"


def heat_map(axes: Any, shares: npt.NDArray[np.float64], fontsize: int) -> Any:
    """Draw shares in percent, the first row on top, and return the image; cells without a number stay empty.

    Shapes: shares (rows, columns), NaN where there is no number.
    """
    image = axes.imshow(100 * shares, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    if shares.shape[1] <= FEW:
        for (line, column), share in np.ndenumerate(shares):
            if not np.isnan(share):
                style = {"ha": "center", "va": "center", "fontsize": fontsize, "color": ink_on(image, 100 * share)}
                axes.text(column, line, f"{100 * share:.0f}", **style)
    axes.spines[:].set_visible(False)
    return image
