"""The picture of eval.reach: measured against predicted reach, a colour for each arm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtri

from eval.reach.regression import Regression, measured
from lab.plots import GREY, PALETTE, canvas


def draw_reach(points: pd.DataFrame, model: Regression, confidence: float, output: Path) -> None:
    """Draw every probe, the line of equality and the limits of a new probe; triangles are bounds of reach.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    exact = measured(points)
    bound = np.where(np.isfinite(points["low"]), points["low"], points["high"])
    shown = points.assign(x=np.exp(model.predict(points)), y=np.exp(bound), exact=exact)
    with canvas(output, 6.5, 5.0) as figure:
        axes = figure.subplots()
        for number, (arm, group) in enumerate(shown.groupby("arm", sort=False)):
            colour = PALETTE[number % len(PALETTE)]
            inside = group[group["exact"]]
            low, high = (inside[name].fillna(inside["y"]) for name in ("reach_low", "reach_high"))
            bars = (inside["y"] - low, high - inside["y"])
            axes.errorbar(
                inside["x"], inside["y"], bars, fmt="o", color=colour, markersize=4, elinewidth=0.8, label=arm
            )
            for side, marker in (("high", "^"), ("low", "v")):
                beyond = group[np.isinf(group[side])]
                axes.plot(beyond["x"], beyond["y"], marker, color=colour, markerfacecolor="white", markersize=5)
        ends = np.array([shown[["x", "y"]].min().min(), shown[["x", "y"]].max().max()])
        width = np.exp(model.sigma * ndtri((1 + confidence) / 2))
        axes.plot(ends, ends, color=GREY, linewidth=1)
        axes.fill_between(ends, ends / width, ends * width, color=GREY, alpha=0.15, lw=0)
        axes.set(
            xscale="log", yscale="log", xlabel=f"reach predicted from {', '.join(model.columns) or 'nothing'} (tokens)"
        )
        axes.set(ylabel="reach (tokens); triangles: that far or farther, or less")
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)
