"""The figure that a command draws on and the file it is saved to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import MissingPackage
from lab.files import writing

STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
DPI = 130
BLUE, ORANGE, GREY = "#3366aa", "#cc6622", "#888888"
STYLES = ("-", "--", ":", "-.")
WIDEST = 4.0  # points, of the first of several lines
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # colour-blind safe (Okabe, Ito 2008)


@contextmanager
def canvas(output: Path, width: float, height: float) -> Iterator[Any]:
    """Open a figure of a size in inches, and save it when the block ends.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("matplotlib", "drawing pictures", "plot") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with writing(str(output), "picture with -o"):
            output.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(output, dpi=DPI)


def line_look(number: int, lines: int, colours: Sequence[str] = PALETTE) -> dict[str, Any]:
    """Choose colour, dashes and width of one of several lines.

    Each line is thinner than those before it, so that one that lies on another leaves its edges to be seen.

    Example:
        >>> [line_look(number, 3)["linewidth"] for number in range(3)]
        [3.0, 2.2, 1.4]
    """
    width = 1.4 + min(0.8 * (lines - 1), WIDEST - 1.4) * (1 - number / max(lines - 1, 1))
    style = STYLES[number % len(STYLES)]
    return {"color": colours[number % len(colours)], "linestyle": style, "linewidth": round(width, 2)}


def count_axis(axis: Any) -> None:
    """Write a few large numbers on an axis with k, M or G, from 0; a short run's do not overlap either."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(EngFormatter(sep=""))
    end = 1.05 * axis.get_data_interval()[1]
    if 0 < end < math.inf:  # something is drawn
        axis.set_view_interval(0, end, ignore=True)
