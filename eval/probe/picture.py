"""One picture of a probe: pass share by length with its limits, the monotone fit, and the effective length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.plots import BLUE, GREY, ORANGE, canvas
from lab.probe.curve import LengthResult, monotone_shares, shown_length

RIGHT = {"xycoords": ("axes fraction", "data"), "ha": "right"}


def draw_probe(
    results: Sequence[LengthResult], summary: dict[str, Any], title: str, window: int | None, output: Path
) -> None:
    """Draw a probe's outcomes and the effective lengths of its summary record; `window` is the training window.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 7.5, 4.5) as figure:
        axes = figure.subplots()
        lengths, shares = [r.length for r in results], [r.accuracy for r in results]
        low, high = [r.low for r in results], [r.high for r in results]
        limits = f"limits of each length ({summary['confidence']:.6g})"
        axes.fill_between(lengths, low, high, color=BLUE, alpha=0.18, linewidth=0, label=limits)
        axes.plot(lengths, monotone_shares(results), color=BLUE, linewidth=1.4, label="monotone fit")
        axes.plot(lengths, shares, color=BLUE, linestyle="", marker="o", markersize=4, label="share of tests passed")
        for values in summary["thresholds"]:
            draw_effective_length(axes, values, lengths[-1])
        if window is not None and lengths[0] <= window <= lengths[-1]:
            axes.axvline(window, color=GREY, linestyle="--", linewidth=1)
            axes.annotate("training window", (window, 0.2), rotation=90, ha="right", va="center", color=GREY)
        axes.set(xlabel="length (tokens)", ylabel="share of tests passed", ylim=(-0.03, 1.03))
        axes.set_title(title, fontsize=10)
        figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3)


def draw_effective_length(axes: Any, values: dict[str, Any], last: int) -> None:
    """Draw a threshold, on it the smooth effective length with its limits, and the one by steps."""
    threshold, steps = values["threshold"], values["effective_length"]
    axes.axhline(threshold, color=GREY, linestyle=":", linewidth=1, zorder=0)
    below = "" if steps else f": effective length {shown_length(None, values['first_length'])}"
    axes.annotate(f"threshold {threshold:g}{below}", (1, threshold), **RIGHT, va="bottom", color=GREY)
    high = last if values["smooth_high"] is None else values["smooth_high"]
    names = dict.fromkeys(("limits", "smooth", "steps"), "_")
    if ORANGE not in (line.get_color() for line in axes.lines):  # only the first threshold is in the legend
        names = {"limits": "limits", "smooth": "effective length, smooth", "steps": "by steps"}
    if high > values["smooth_low"] > 0:
        ends = (values["smooth_low"], high)
        axes.plot(
            ends,
            (threshold, threshold),
            color=ORANGE,
            linewidth=9,
            alpha=0.4,
            solid_capstyle="butt",
            label=names["limits"],
        )
    if values["smooth"]:
        axes.plot(
            values["smooth"], threshold, color=ORANGE, marker="D", markersize=4, linestyle="", label=names["smooth"]
        )
    if steps:
        axes.plot(
            steps,
            threshold,
            color=ORANGE,
            marker="|",
            markersize=11,
            markeredgewidth=2,
            linestyle="",
            label=names["steps"],
        )
