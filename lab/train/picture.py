"""One picture of a run: position frequency, loss, and accuracy by length during training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from lab.counts import SavedCounts
from lab.errors import CheckpointError
from lab.plots import BLUE, GREY, ORANGE, canvas, count_axis
from lab.train.folder import RunFolder


def draw_run(run: Path, output: Path | None = None) -> Path:
    """Draw a run folder's picture and return its path.

    Raises: MissingPackage without matplotlib, CheckpointError for a folder without counts.npz.
    """
    folder, output = RunFolder(run), output or run / "picture.png"
    if not (run / "counts.npz").exists():
        raise CheckpointError(f"{run}: holds no counts.npz; use the folder of a run that has saved a checkpoint")
    counts, probes = SavedCounts.read(run / "counts.npz"), list(folder.records("probes.jsonl"))
    with canvas(output, 13, 3.9) as figure:
        left, middle, right = figure.subplots(1, 3)
        full = counts.lengths @ np.arange(len(counts.lengths))
        draw_frequency(left, counts.f, counts.tokens, gaps=bool(counts.tokens != full))
        draw_loss(middle, list(folder.records("metrics.jsonl")), probes)
        draw_accuracy(right, figure, probes, counts.max_len)
        figure.suptitle(run.name, fontsize=10)
    return output


def draw_frequency(axes: Any, frequency: np.ndarray, tokens: int, *, gaps: bool) -> None:
    """Draw f(i), and, but for ids with gaps, what full windows would have given at the same number of tokens."""
    window = len(frequency)
    positions = np.arange(window)
    axes.fill_between(positions, frequency, color=BLUE, alpha=0.35, linewidth=0)
    axes.plot(positions, frequency, color=BLUE, label="this run")
    if not gaps:
        axes.plot(positions, tokens * (1 - positions / window), color=GREY, linestyle="--", label="windows always full")
    far = frequency[-(-3 * window // 4) :].sum() / max(frequency.sum(), 1)
    axes.set(title="position frequency", xlabel="relative position i (tokens)", ylabel="f(i)")
    words = f"i ≥ ¾ {'target ' * gaps}window: {far:.1%} of the mass"
    axes.text(0.97, 0.7, words, transform=axes.transAxes, ha="right", color=BLUE)
    axes.legend(frameon=False)
    count_axis(axes.yaxis)


def draw_loss(axes: Any, metrics: list[dict[str, Any]], probes: list[dict[str, Any]]) -> None:
    """Draw training and held-out loss over consumed tokens."""
    tokens = [record["consumed_tokens"] for record in metrics]
    axes.plot(tokens, [number(record, "loss") for record in metrics], color=BLUE, linewidth=0.8, label="training")
    held_out = [(p["consumed_tokens"], number(p, "held_out_loss")) for p in probes if "held_out_loss" in p]
    if held_out:
        axes.plot(*zip(*held_out), color=ORANGE, marker=".", label="held out")
    axes.set(title="loss", xlabel="consumed tokens", ylabel="nats per token")
    count_axis(axes.xaxis)
    axes.legend(frameon=False)


def number(record: dict[str, Any], key: str) -> float:
    """Return a number of a record, NaN, which leaves a gap, where it has none."""
    value = record.get(key)
    return value if isinstance(value, int | float) else math.nan


def draw_accuracy(axes: Any, figure: Any, probes: list[dict[str, Any]], window: int) -> None:
    """Draw accuracy by length, one line per probe, from light to dark as tokens are consumed."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import EngFormatter

    curves: dict[int, list[tuple[float, float]]] = {}
    for record in probes:
        if "length" in record:
            point = (number(record, "length"), number(record, "accuracy"))
            curves.setdefault(record["consumed_tokens"], []).append(point)
    axes.set(title="four-needle accuracy", xlabel="length (tokens)", ylabel="share of tests passed", ylim=(-0.02, 1.02))
    if not curves:
        axes.text(0.5, 0.5, "no probe yet", transform=axes.transAxes, ha="center", color=GREY)
        return
    scale: Any = ScalarMappable(Normalize(0, max(curves)), colormaps["viridis_r"])
    for tokens, curve in sorted(curves.items()):
        axes.plot(*zip(*sorted(curve)), color=scale.to_rgba(tokens), marker=".", linewidth=1.2)
    threshold = next((number(record, "threshold") for record in probes if "threshold" in record), math.nan)
    if not math.isnan(threshold):
        axes.axhline(threshold, color=GREY, linestyle=":", linewidth=1)
        axes.annotate(
            f"threshold {threshold:g}",
            (0, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(3, 2),
            textcoords="offset points",
            color=GREY,
        )
    axes.axvline(window, color=GREY, linestyle="--", linewidth=1)
    axes.annotate("window", (window, 0.5), rotation=90, ha="right", va="center", color=GREY)
    axes.set_xlim(0, 1.05 * np.nanmax([window, *(length for curve in curves.values() for length, _ in curve)]))
    figure.colorbar(scale, ax=axes, label="consumed tokens", format=EngFormatter(sep=""))
