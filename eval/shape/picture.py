"""One picture of a plan: the profiles, and the draws that reach them.

Left the share of the pairs by distance: natural, aimed at and reached. Right, for segments, the share of the tokens by
length, natural and planned; for skips, the ids of some samples, one below the other; for loss weights, the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lab.shape.components import length_classes

from eval.common.plots import percent, tick_tokens
from lab.data.shaped import Shaped
from lab.plots import BLUE, GREY, ORANGE, canvas
from lab.shape import Plan, ShapeConfig
from lab.skip import run_lengths

SAMPLES = 40  # whose ids are shown
SEGMENTS = 4096  # drawn for the planned lengths


def draw_shape(shape: ShapeConfig, shaped: Shaped, window: int, seed: int, output: Path) -> None:
    """Draw the picture.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 12, 4.2) as figure:
        left, right = figure.subplots(1, 2)
        draw_profiles(left, shaped.plan)
        if shaped.plan.weights is not None:
            draw_weights(right, shaped.plan.weights)
        elif shaped.skip is None:
            draw_lengths(right, shaped, window, seed)
        else:
            draw_samples(right, shaped, window, int(shaped.plan.edges[-1]), seed)
        words = f"{shape.strategy.method} for {shape.target.method} at strength {shape.strength:g}"
        figure.suptitle(f"{words}: total variation {shaped.plan.distance:.3f}", fontsize=11)


def draw_profiles(axes: Any, plan: Plan) -> None:
    """Draw the share of the pairs for each distance, by bins."""
    window, widths = int(plan.edges[-1]), np.diff(plan.edges)
    looks = (("natural", GREY, "--", 1.5), ("aimed", ORANGE, "-", 4.0), ("reached", BLUE, "-", 1.2))
    for name, color, style, width in looks:  # what is reached may lie on what is aimed at
        axes.stairs(getattr(plan, name) / widths, plan.edges, color=color, linestyle=style, label=name, linewidth=width)
    pairs = "pairs" if plan.weights is None else "supervised pairs"
    axes.set(title=f"share of the {pairs} at distance i", xlabel="relative position i (tokens)", ylabel="share")
    axes.set(xlim=(0, window), ylim=(0, None))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2%}")
    axes.legend(frameon=False)
    tick_tokens(axes.xaxis, window)


def draw_weights(axes: Any, weights: npt.NDArray[np.float64]) -> None:
    """Draw the loss weight of a target by its visible context."""
    axes.plot(weights, color=BLUE, linewidth=1.5)
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1.5)
    axes.set(title="loss weight of a target", xlabel="visible context (tokens)", ylabel="weight, mean 1")
    axes.set(xlim=(0, len(weights)), ylim=(0, None))
    tick_tokens(axes.xaxis, len(weights))


def draw_lengths(axes: Any, shaped: Shaped, window: int, seed: int) -> None:
    """Draw the share of the tokens by the length of their segment, natural and as drawn."""
    edges = length_classes(window)
    edges = np.append(edges[:-1][:: max(1, len(edges) // 16)], window + 1)
    drawn = np.array([shaped.segments.draw(sample, seed).length for sample in range(SEGMENTS)])
    planned = np.bincount(drawn, weights=drawn, minlength=window + 1)
    natural = shaped.counts * np.arange(window + 1)
    shares = {
        name: np.add.reduceat(x, edges[:-1]) / x.sum() for name, x in (("natural", natural), ("planned", planned))
    }
    axes.stairs(shares["planned"], edges, color=BLUE, fill=True, alpha=0.4, label="planned")
    axes.stairs(shares["natural"], edges, color=GREY, linewidth=1.5, label="natural")
    axes.set(title="share of the tokens by length of their segment", xlabel="length (tokens)", xlim=(0, window + 1))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    axes.legend(frameon=False)
    tick_tokens(axes.xaxis, window)


def draw_samples(axes: Any, shaped: Shaped, window: int, target_len: int, seed: int) -> None:
    """Draw the ids of some samples: a line for each run of contiguous ids."""
    assert shaped.skip is not None, "called for skips"
    for row in range(SAMPLES):
        ids = shaped.skip(np.zeros(window, np.int64), np.random.default_rng([seed, row]))
        lengths = run_lengths(ids)
        starts = ids[np.cumsum(lengths) - lengths]
        axes.hlines(np.full(len(starts), row), starts, starts + lengths, color=BLUE, linewidth=2.5)
    axes.set(title=f"ids of {SAMPLES} samples of {window:,} tokens", xlabel="id", xlim=(0, target_len))
    axes.set(ylim=(SAMPLES, -1), yticks=[])
    axes.spines["left"].set_visible(False)
    tick_tokens(axes.xaxis, target_len)
