"""The picture of eval.lines: retrieval over the length of the record, a line for each model, checkpoint and method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.common.plots import MARKERS, curves_of, mark_window
from lab.plots import canvas


def draw_lines(rows: Sequence[dict[str, Any]], train_len: int | None, output: Path) -> None:
    """Draw rows of one protocol, at the tokens of their longest tests.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    curves = curves_of(rows)
    with canvas(output, 7, 4.4) as figure:
        axes = figure.subplots()
        for number, (name, curve) in enumerate(curves.items()):
            lengths, scores, low, high = ([row[key] for row in curve] for key in ("length", "score", "low", "high"))
            marker = MARKERS[number % len(MARKERS)]
            (line,) = axes.plot(lengths, [100 * x for x in scores], marker=marker, markersize=5, label=name)
            bounds = ([100 * x for x in limits] for limits in (low, high))
            axes.fill_between(lengths, *bounds, color=line.get_color(), alpha=0.12, lw=0)
        shown = {row["length"]: row["lines"] for row in rows}
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            sorted(shown),
            [f"{length:,}\n{shown[length]['least']:,} lines" for length in sorted(shown)],
            fontsize=8 if len(shown) < 8 else 6,
        )
        axes.minorticks_off()
        mark_window(axes, train_len, min(shown), max(shown))
        axes.set(xlabel="tokens of the longest test, and lines", ylabel="tests passed (%)", ylim=(-2, 102))
        first = rows[0]
        axes.set_title(f"line retrieval, {first['protocol']} protocol, {first['n']} tests each", fontsize=9, pad=16)
        figure.legend(loc="outside lower center", ncols=1 if len(curves) < 4 else 2, frameon=False)
