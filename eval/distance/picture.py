"""The picture of eval.distance: share found against distance, and below it how often training saw the distance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.distance.series import Series
from eval.engine.plots import MARKERS, mark_window
from lab.plots import GREY, PALETTE, canvas, line_look
from lab.probe.curve import monotone_shares

COLOURS = (*PALETTE, "#000000")


def draw_distances(series: Sequence[Series], title: str, window: int, output: Path) -> None:
    """Draw the methods in one picture, f below them where training counted it.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    counted = [row for row in series[0].rows if row["f"]]
    with canvas(output, 7.5, 5.6 if counted else 4.4) as figure:
        panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1)) if counted else [figure.subplots()]
        for number, line in enumerate(series):
            draw_series(panels[0], line, line_look(number, len(series), COLOURS), MARKERS[number % len(MARKERS)])
        threshold = series[0].reach["threshold"]
        panels[0].axhline(threshold, color=GREY, linestyle=":", linewidth=1, zorder=0)
        at_left = {"xycoords": ("axes fraction", "data"), "xytext": (3, 2), "textcoords": "offset points"}
        panels[0].annotate(f"threshold {threshold:g}", (0, threshold), color=GREY, **at_left)
        panels[0].set(ylabel="share of numbers found", ylim=(-0.03, 1.03))
        if counted:
            x, f = zip(*((row["distance"], row["f"]) for row in counted), strict=True)
            panels[1].plot(x, f, color="#444444", marker=".", linewidth=1.2)
            panels[1].set(yscale="log", ylabel="f (pairs trained)")
        mark_window(panels[0], window, 0, window)
        for axes in panels[1:]:
            axes.axvline(window, color=GREY, linestyle="--", linewidth=1)
        panels[-1].set(xlabel="distance of the number (tokens)", xlim=(0, 1.02 * window))
        figure.suptitle(title, fontsize=9)
        names = panels[0].get_legend_handles_labels()
        figure.legend(*names, frameon=False, fontsize=8, loc="outside lower center", ncols=2)


def draw_series(axes: Any, series: Series, look: dict[str, Any], marker: str) -> None:
    """Draw one method: shares with limits, the fit, reach on the threshold; open markers are four-needle tests.

    Thin lines that end in a number of tokens are shares found in shorter prompts.
    """
    colour, size = look["color"], 2 + 2 * look["linewidth"]
    draw_shares(axes, series.rows, color=colour, marker=marker, markersize=size, linestyle="", label=series.method)
    distances = [row["distance"] for row in series.rows]
    axes.plot(distances, monotone_shares(series.results), **look)
    reach = series.reach["reach"]
    if reach is not None:
        axes.plot(reach, series.reach["threshold"], color=colour, marker="|", markersize=14, markeredgewidth=2)
    if series.four:
        label = f"{series.method}, four needles (training)"
        style = {"markerfacecolor": "white", "markersize": 4.5, "linestyle": "", "alpha": 0.7}
        draw_shares(axes, series.four, color=colour, marker=marker, label=label, **style)

    for context in dict.fromkeys(row["context"] for row in series.shorter):
        x, share = zip(*((r["distance"], r["score"]) for r in series.shorter if r["context"] == context), strict=True)
        axes.plot(x, share, color=colour, linewidth=0.8, linestyle="--", marker=".", markersize=4)
        axes.annotate(f"{context:,}", (x[-1], share[-1]), color=colour, xytext=(3, 3), textcoords="offset points")


def draw_shares(axes: Any, rows: Sequence[dict[str, Any]], **style: Any) -> None:
    """Draw shares with their limits."""
    x, share, low, high = (np.array([row[name] for row in rows]) for name in ("distance", "score", "low", "high"))
    axes.errorbar(x, share, (share - low, high - share), elinewidth=0.9, capsize=2, **style)
