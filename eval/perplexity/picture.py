"""The picture of eval.perplexity: perplexity over context length, a line for each model, checkpoint and method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.common.plots import MARKERS, curves_of, mark_window
from lab.plots import canvas


def draw_perplexity(rows: Sequence[dict[str, Any]], train_len: int | None, output: Path) -> None:
    """Draw rows that were measured on the same documents with the same stride.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    curves = curves_of(rows)
    with canvas(output, 7, 4.4) as figure:
        axes = figure.subplots()
        for number, (name, curve) in enumerate(curves.items()):
            lengths, scores = ([row[key] for row in curve] for key in ("length", "score"))
            (line,) = axes.plot(lengths, scores, marker=MARKERS[number % len(MARKERS)], markersize=5, label=name)
            known = [row for row in curve if row["low"] is not None]
            low, high = ([row[key] for row in known] for key in ("low", "high"))
            axes.fill_between([row["length"] for row in known], low, high, color=line.get_color(), alpha=0.12, lw=0)
        lengths = sorted({row["length"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        scores = [row["score"] for row in rows]
        if max(scores) > 10 * min(scores):
            axes.set_yscale("log")
        else:
            spread = max(max(scores) - min(scores), 0.02 * max(scores))
            axes.set_ylim(min(scores) - spread, max(scores) + spread)  # intervals may be far wider than what differs
        mark_window(axes, train_len, lengths[0], lengths[-1])
        axes.set(xlabel="context length (tokens)", ylabel="perplexity")
        first = rows[0]
        title = (
            f"sliding window, stride {first['stride']}; {first['n']} documents ({first['source']}), 95% over documents"
        )
        axes.set_title(title, fontsize=9, pad=16)
        figure.legend(loc="outside lower center", ncols=1 if len(curves) < 4 else 2, frameon=False)
