"""The picture of eval.perplexity: perplexity over context length, a line for each model, checkpoint and method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.engine.plots import draw_curves, mark_window
from lab.plots import canvas


def draw_perplexity(rows: Sequence[dict[str, Any]], train_len: int | None, output: Path) -> None:
    """Draw rows that were measured on the same documents with the same stride.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    first, lengths, scores = rows[0], sorted({row["length"] for row in rows}), [row["score"] for row in rows]
    with canvas(output, 7, 4.4) as figure:
        drawn = f"{first['n']} documents ({first['source']}), 95% over documents"
        axes = draw_curves(figure, rows, f"sliding window, stride {first['stride']}; {drawn}")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        if max(scores) > 10 * min(scores):
            axes.set_yscale("log")
        else:
            spread = max(max(scores) - min(scores), 0.02 * max(scores))
            axes.set_ylim(min(scores) - spread, max(scores) + spread)  # intervals may be far wider than what differs
        mark_window(axes, train_len, lengths[0], lengths[-1])
        axes.set(xlabel="context length (tokens)", ylabel="perplexity")
