"""The picture of eval.heatmap: numbers found by depth and length, and failures by third of the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.plots import heat_map, mark_window_between
from eval.heatmap.depths import THIRDS
from lab.plots import PALETTE, canvas

COLOURS = (PALETTE[0], PALETTE[4], PALETTE[1])
Rows = Mapping[int, Sequence[dict[str, Any]]]


def draw_heatmap(cells: Rows, thirds: Rows, title: str, train_len: int | None, output: Path) -> None:
    """Draw the rows of each length; cells without a number stay empty.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    depths = max(map(len, cells.values()))
    with canvas(output, max(6.0, 2.4 + 0.6 * len(cells)), 3.8 + 0.22 * depths) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(0.22 * depths, 1.6))
        image = draw_cells(above, cells)
        draw_thirds(below, thirds)
        lengths = list(cells)
        below.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        below.set_xlabel("length (tokens)")
        title += mark_window_between((above, below), train_len, lengths, linewidth=1)
        figure.suptitle(title.replace("; ", "\n"), fontsize=9)
        figure.colorbar(image, ax=above, label="numbers found (%)")


def draw_cells(axes: Any, cells: Rows) -> Any:
    """Draw the heat map, the beginning of the text on top, and return its image."""
    columns = list(cells.values())
    shares = np.array([[np.nan if row["score"] is None else row["score"] for row in rows] for rows in columns]).T
    image = heat_map(axes, shares, 7)
    axes.set_yticks(range(len(shares)), [f"{row['from_depth']:.0%}-{row['to_depth']:.0%}" for row in columns[0]])
    axes.set_ylabel("depth of the number")
    return image


def draw_thirds(axes: Any, thirds: Rows) -> None:
    """Draw each third's share of the failures with its limits, side by side at each length."""
    for third, (name, colour) in enumerate(zip(THIRDS, COLOURS, strict=True)):
        known = [(place, rows[third]) for place, rows in enumerate(thirds.values()) if rows[third]["score"] is not None]
        x = [place + 0.27 * (third - 1) for place, _ in known]
        share = np.array([row["score"] for _, row in known])
        low, high = (np.array([row[limit] for _, row in known]) for limit in ("low", "high"))
        axes.bar(x, share, 0.25, color=colour, label=f"{name} of the text")
        axes.errorbar(x, share, (share - low, high - share), fmt="none", ecolor="#222222", elinewidth=0.8, capsize=1.5)
    axes.set(ylabel="share of failures", ylim=(0, 1))
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
