"""The picture of eval.methods: share of tests passed by method, with limits, at every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.plots import GREY, PALETTE, canvas

WIDEST = 11.0  # inches, of a page
COLOURS = dict(zip(("rope", "ntk", "yarn", "rerope", "self_extend", "dca", "string"), (GREY, *PALETTE), strict=True))


def look(method: str) -> dict[str, Any]:
    """Return the colour of a method's bars, hatched where its parameters are replaced."""
    name, colon, _ = method.partition(":")
    return {"color": COLOURS[name], "hatch": "//" if colon else None, "edgecolor": "white"}


def draw_methods(rows: Mapping[int, Sequence[dict[str, Any]]], title: str, output: Path) -> None:
    """Draw the methods of every length side by side, with their limits.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    methods = [row["compared_as"] for row in next(iter(rows.values()))]
    width = 0.84 / len(methods)
    with canvas(output, min(WIDEST, max(6.0, 1.5 + 0.36 * len(methods) * len(rows))), 3.8) as figure:
        axes = figure.subplots()
        for number, method in enumerate(methods):
            own = [next(row for row in part if row["compared_as"] == method) for part in rows.values()]
            x = np.arange(len(own)) + width * (number - (len(methods) - 1) / 2)
            share, low, high = (np.array([row[name] for row in own]) for name in ("score", "low", "high"))
            axes.bar(x, share, 0.9 * width, label=method, **look(method))
            axes.errorbar(
                x, share, (share - low, high - share), fmt="none", ecolor="#222222", elinewidth=0.8, capsize=2
            )
        axes.set_xticks(range(len(rows)), [f"{length:,}" for length in rows])
        axes.set(xlabel="length (tokens)", ylabel="share of tests passed", ylim=(0, 1.03))
        axes.set_title(title, fontsize=9)
        figure.legend(frameon=False, loc="outside lower center", ncols=len(methods), fontsize=8)
