"""The figure that a command draws on and the file it is saved to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import MissingPackage
from lab.files import writing

STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
DPI = 130
BLUE, ORANGE, GREY = "#3366aa", "#cc6622", "#888888"
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
