"""The picture of eval.lines: retrieval over the length of the record, a line for each model, checkpoint and method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.engine.plots import draw_curves, mark_window
from lab.plots import canvas


def draw_lines(rows: Sequence[dict[str, Any]], train_len: int | None, output: Path) -> None:
    """Draw rows of one protocol, at the tokens of their longest tests.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    first, shown = rows[0], {row["length"]: row["lines"]["least"] for row in rows}
    with canvas(output, 7, 4.4) as figure:
        title = f"line retrieval, {first['protocol']} protocol, {first['n']} tests each"
        axes = draw_curves(figure, rows, title, factor=100)
        names = [f"{length:,}\n{shown[length]:,} lines" for length in sorted(shown)]
        axes.set_xticks(sorted(shown), names, fontsize=8 if len(shown) < 8 else 6)
        axes.minorticks_off()
        mark_window(axes, train_len, min(shown), max(shown))
        axes.set(xlabel="tokens of the longest test, and lines", ylabel="tests passed (%)", ylim=(-2, 102))
