"""What the pictures of several evaluations share: axes in tokens, shares in words, names of curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEAST = 1e-5  # share that is written out
ROUND = 64  # tokens; a length that is a multiple is marked at its quarters
MARKERS = "osD^vP*X"


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
