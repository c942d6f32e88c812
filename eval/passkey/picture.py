"""The picture of eval.passkey: retrieval by depth and length as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.plots import heat_map, mark_window_between
from lab.plots import canvas


def draw_grid(rows: Sequence[dict[str, Any]], title: str, train_len: int | None, output: Path) -> None:
    """Draw the cells of one subject and protocol; cells that were not measured stay empty.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    lengths, depths = (sorted({row[key] for row in rows}) for key in ("length", "depth"))
    shares = np.full((len(depths), len(lengths)), np.nan)
    for row in rows:
        shares[depths.index(row["depth"]), lengths.index(row["length"])] = row["score"]
    with canvas(output, max(5.0, 2.2 + 0.7 * len(lengths)), max(3.2, 1.6 + 0.3 * len(depths))) as figure:
        axes = figure.subplots()
        image = heat_map(axes, shares, 8)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
        axes.set(xlabel="length (tokens, prompt and answer)", ylabel="depth of the number in the filler")
        title += mark_window_between([axes], train_len, lengths)
        figure.suptitle(title.replace("; ", "\n"), fontsize=9)
        figure.colorbar(image, ax=axes, label="tests passed (%)")
