"""One picture of attention under shifted positions: three panels, a line for each weights and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eval.engine.plots import power_axis
from eval.precision.shift_difference import REFERENCE
from lab.plots import BLUE, ORANGE, canvas

COLORS = {"trained": BLUE, "random": ORANGE}
LINES = {"fp32": ":", "bf16": "-", "bf16_model": "--"}
LABELS = 20  # shifts that are named below the first panel, at most

Values = npt.NDArray[np.float64]
Curves = Mapping[tuple[str, str], Values]


def draw_precision(
    title: str,
    shifts: Sequence[int],
    by_shift: Curves,
    by_token: Curves,
    lengths: Sequence[int],
    by_length: Curves,
    output: Path,
) -> None:
    """Draw a picture like Figure 1 of arXiv:2411.13476, with logarithmic axes so that fp32 is seen too.

    Shapes: for each (weights, arithmetic) D (len(shifts),), its terms by token (T,), D_logit (len(lengths),).
    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 15, 4.8) as figure:
        left, middle, right = figure.subplots(1, 3)
        tokens = len(next(iter(by_token.values())))
        pair = f"shift 0 against {REFERENCE}"
        draw_lines(left, range(len(shifts)), by_shift, marker=".")
        left.set(title=f"attention difference D, {tokens:,} tokens", ylabel="D (attention weights)")
        left.set_xlabel(f"shift of all positions (tokens), against a shift of {REFERENCE}")
        step = -(-len(shifts) // LABELS)
        left.set_xticks(range(0, len(shifts), step), [f"{shift:,}" for shift in shifts[::step]], rotation=90)
        draw_lines(middle, range(1, tokens + 1), by_token, linewidth=0.8)
        middle.set(title=f"its terms by token, {pair}", xlabel="token (the first is 1)")
        middle.set_ylabel("term of D (attention weights)")
        power_axis(middle.xaxis)
        draw_lines(right, lengths, by_length, marker=".")
        right.set(title=f"logits of the first token, {pair}", xlabel="length of the text (tokens)")
        right.set_ylabel("D_logit (logits)")
        power_axis(right.xaxis)
        right.set_xticks(lengths)
        figure.suptitle(title, fontsize=10)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(by_shift), frameon=False)


def draw_lines(axes: Any, x: Sequence[int], curves: Curves, **style: Any) -> None:
    """Draw a line for each curve; an exact 0 cannot be drawn on a logarithmic axis and leaves a gap."""
    for (weights, arithmetic), values in curves.items():
        shown = np.where(values > 0, values, np.nan)
        label = f"{weights} weights, {arithmetic}"
        axes.plot(x, shown, color=COLORS[weights], linestyle=LINES[arithmetic], label=label, **style)
    if any((values > 0).any() for values in curves.values()):
        axes.set_yscale("log")
