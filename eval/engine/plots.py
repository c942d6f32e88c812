"""Parts shared by the evaluations' pictures: axes in tokens, shares as text, names of curves."""

from __future__ import annotations

from typing import Any

from lab.plots import GREY

LEAST = 1e-5  # share that is written out
ROUND = 64  # tokens; a length that is a multiple is marked at its quarters


def tick_tokens(axis: Any, end: float) -> None:
    """Put a few whole numbers of tokens on an axis from 0 to `end`, quarters where they are round."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    few = MaxNLocator(5, integer=True, min_n_ticks=1)
    axis.set_major_locator(MultipleLocator(end / 4) if end and end % ROUND == 0 else few)
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


def mark_window(axes: Any, train_len: int | None, first: int, last: int) -> None:
    """Mark the training window where it lies between two lengths."""
    if train_len is not None and first <= train_len <= last:
        axes.axvline(train_len, color=GREY, linestyle="--", linewidth=1)
        above = {"xycoords": ("data", "axes fraction"), "xytext": (0, 3), "textcoords": "offset points"}
        axes.annotate(f"training window {train_len:,}", (train_len, 1), ha="center", color=GREY, **above)
