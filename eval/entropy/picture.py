"""One picture of attention entropy: a line for each layer over the number of visible tokens, against ln n."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eval.engine.plots import power_axis
from lab.plots import GREY, canvas

NAMED = 10  # layers at most that a legend names; more have a colour bar
LIGHTEST = 0.9  # of the colour map, whose last colours vanish on white
SMOOTH = 0.04  # share of n to either side that a point of a line averages over; single queries of few texts are noise


def draw_entropy(curves: npt.NDArray[np.float64], title: str, train_len: int | None, output: Path) -> None:
    """Draw a picture like Figure 1 of arXiv:2401.07004.

    Shapes: curves (n_layers, T), in nats, column m for m + 1 visible tokens.
    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 8, 5) as figure:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        axes = figure.subplots()
        visible = np.arange(1, curves.shape[1] + 1)
        axes.plot(visible, np.log(visible), color=GREY, linestyle="--", label="uniform, ln n")
        last = max(len(curves) - 1, 1) / LIGHTEST
        scale, colors = ScalarMappable(Normalize(0, last), colormaps["viridis"]), colormaps["viridis"]
        for layer, curve in enumerate(curves):
            line = smoothed(curve)
            axes.plot(visible[: len(line)], line, color=colors(layer / last), linewidth=1.3, label=f"layer {layer}")
        if len(curves) > NAMED:
            bar = figure.colorbar(scale, ax=axes, label="layer")
            bar.ax.set_ylim(0, len(curves) - 1)
        axes.legend(*legend(axes, len(curves)), frameon=False, loc="upper left")
        mark_window(axes, train_len, curves.shape[1])
        axes.set_title(title, pad=16, fontsize=10)
        around = f"each point is the mean over n ± {SMOOTH:.0%}"
        axes.set(xlabel=f"visible tokens n (query position + 1); {around}", ylabel="attention entropy (nats)")
        axes.set_xlim(1, max(2, curves.shape[1]))
        axes.set_ylim(0, None)
        power_axis(axes.xaxis)


def legend(axes: Any, n_layers: int) -> tuple[list[Any], list[str]]:
    """Name all lines, or where there are many layers only that of uniform attention."""
    handles, names = axes.get_legend_handles_labels()
    return (handles, names) if n_layers <= NAMED else (handles[:1], names[:1])


def mark_window(axes: Any, train_len: int | None, longest: int) -> None:
    """Mark the training window where the text goes beyond it."""
    if train_len is None or train_len >= longest:
        return
    axes.axvline(train_len, color=GREY, linestyle=":", linewidth=1)
    above = {"xycoords": ("data", "axes fraction"), "xytext": (0, 2), "textcoords": "offset points"}
    axes.annotate(f"training window {train_len:,}", (train_len, 1), ha="center", va="bottom", color=GREY, **above)


def smoothed(curve: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Average each point over those up to SMOOTH of it to either side, as far as there are such points.

    Example:
        >>> smoothed(np.arange(40.0))[[0, 23, 24, 37]].tolist(), len(smoothed(np.arange(40.0)))
        ([0.0, 23.0, 24.0, 37.0], 39)
    """
    visible = np.arange(1, len(curve) + 1)
    reach = (visible * SMOOTH).astype(int)
    visible = visible[visible + reach <= len(curve)]
    reach = reach[: len(visible)]
    sums = np.concatenate([[0.0], np.cumsum(curve)])
    mean: npt.NDArray[np.float64] = (sums[visible + reach] - sums[visible - 1 - reach]) / (2 * reach + 1)
    return mean
