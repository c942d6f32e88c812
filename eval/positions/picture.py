"""One picture of a distance method's matrix of relative positions, and of how often training has seen them.

Left the matrix (arXiv:2410.18745, Figures 5 and 8), in the middle the same cells by f(rel_pos), right f(i) over i with
the segments it comes from (Figure 1) and the range that the method uses at this length against that of plain distance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.plots import percent, tick_tokens
from eval.positions.matrix import FloatArray, IntArray, cells, number, resolved, values
from eval.positions.training import Training, cell_frequencies
from lab.plots import BLUE, GREY, ORANGE, canvas
from lab.positions import Distance

RED = "#d62728"
CELLS = 512  # queries, and keys, of a text that are drawn at most
NUMBERED = 16  # tokens of the longest text whose cells carry their numbers
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the largest f, named beside the colours, which end with the first
SMOOTH = {"interpolation": "antialiased", "interpolation_stage": "rgba"}  # of more cells than pixels, colours are mixed
BINS = 16  # of segment lengths
POINTS = 2048  # of the curve at most
REACH = 1.25  # end of the curve's axis at most, in lengths that training and the method cover


def draw(distance: Distance, length: int, training: Training, output: Path) -> None:
    """Draw the picture.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 16, 5) as figure:
        figure.get_layout_engine().set(wspace=0.04)
        grid = figure.add_gridspec(2, 3, width_ratios=(1, 1, 1.1), height_ratios=(2.4, 1))
        sampled = evenly(length, CELLS)
        draw_matrix(figure.add_subplot(grid[:, 0]), cells(distance, sampled, sampled), length)
        seen = cell_frequencies(training, distance, sampled, sampled)
        draw_trained(figure.add_subplot(grid[:, 1]), seen, training, length)
        upper = figure.add_subplot(grid[0, 2])
        lower = figure.add_subplot(grid[1, 2], sharex=upper)
        draw_frequency(upper, distance, length, training)
        draw_segments(lower, training)
        title = f"{method_title(distance)}; a text of {length:,} tokens; training: {training.name}"
        figure.suptitle(title, fontsize=11)


def method_title(distance: Distance) -> str:
    """Name the method and its parameters.

    Example:
        >>> from lab.positions import distance
        >>> method_title(distance("string", shift=683))
        'string: shift 683, window 128'
    """
    words = [
        name if value is True else f"{name} {value:,}"
        for name, value in resolved(distance).items()
        if value is not False
    ]
    return f"{distance.method}: {', '.join(words)}" if words else distance.method


def evenly(length: int, most: int) -> IntArray:
    """Choose at most `most` of the positions 0 .. length - 1, evenly, both ends among them.

    Example:
        >>> evenly(9, 5).tolist()
        [0, 2, 4, 6, 8]
    """
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))


def draw_matrix(axes: Any, rel_pos: FloatArray, length: int) -> None:
    """Draw the relative positions as a heat map."""
    largest = float(np.nanmax(rel_pos))
    image = show_cells(axes, rel_pos, length, cmap="viridis", vmin=0, vmax=max(largest, 1))
    bar = axes.figure.colorbar(image, ax=axes, label="relative position (tokens)", pad=0.02)
    tick_tokens(bar.ax.yaxis, largest)
    axes.set_title("relative position of each query and key")
    if length <= NUMBERED:
        for (query, key), cell in np.ndenumerate(rel_pos):
            if not np.isnan(cell):
                color = "black" if cell > largest / 2 else "white"
                axes.text(key, query, number(cell), ha="center", va="center", color=color)


def draw_trained(axes: Any, frequency: FloatArray, training: Training, length: int) -> None:
    """Draw how often every cell's relative position was trained; those never trained in red."""
    from matplotlib.colors import ListedColormap, LogNorm

    share = training.share_of(frequency)
    never = share == 0
    image = show_cells(axes, np.ma.masked_where(never, share), length, norm=LogNorm(SHARES[0], 1), cmap="magma")
    label = "f(rel. position), as a share of the largest f"
    bar = axes.figure.colorbar(image, ax=axes, label=label, pad=0.02, extend="min")
    bar.set_ticks(SHARES, labels=[percent(tick) for tick in SHARES], minor=False)
    bar.minorticks_off()
    axes.set_title("how often training saw that relative position")
    if never.any():
        show_cells(axes, np.ma.masked_where(~never, never), length, cmap=ListedColormap([RED]))
        text = f"never trained:\n{percent(never.sum() / np.isfinite(share).sum())} of the cells"
        axes.text(0.97, 0.96, text, transform=axes.transAxes, ha="right", va="top", color=RED)


def show_cells(axes: Any, values: FloatArray, length: int, **style: Any) -> Any:
    """Show a value for every cell of a matrix, queries downwards; on the axes of short texts cells are centred."""
    shift = 0.5 if length <= NUMBERED else 0.0
    frame = (-shift, length - shift, length - shift, -shift)
    axes.set(xlabel="key position (tokens)", ylabel="query position (tokens)")
    for axis in (axes.xaxis, axes.yaxis):
        tick_tokens(axis, length)
    return axes.imshow(values, extent=frame, aspect="auto", **SMOOTH, **style)


def draw_frequency(axes: Any, distance: Distance, length: int, training: Training) -> None:
    """Draw f(i), and up to where the method and plain distance use it."""
    largest, plain, known = float(values(distance, length)[-1]), float(length - 1), training.train_len
    end = min(max(plain + 1, known), REACH * max(largest + 1, known))
    draw_used(axes, training, (0.0, largest, end), BLUE, f"{distance.method} uses up to")
    if largest < plain:
        draw_used(axes, training, (largest, plain, end), GREY, "plain distance goes on to")
    if end > known:
        axes.axvspan(known, end + 0.5, color=RED, alpha=0.15, linewidth=0, label=f"never trained: from {known:,} on")
    axes.set(title="position frequency of the training", ylabel="f(i) / largest f", xlim=(0, end + 0.5), ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    axes.tick_params(labelbottom=False)
    axes.legend(frameon=False, loc="upper right")
    tick_tokens(axes.xaxis, end)


def draw_used(axes: Any, training: Training, reach: tuple[float, float, float], color: str, words: str) -> None:
    """Draw f(i) over the range in use; `reach` is its start, its end, and the end of the axis."""
    start, largest, end = reach
    at = np.linspace(start, min(largest, end), POINTS)
    share = training.share_of(training.frequency_at(at))
    last = float(training.share_of(training.frequency_at(np.array([largest])))[0])
    known = f"where f is {percent(last)} of its largest" if last else "never trained"
    label = f"{words} i = {largest:,.0f},\n{known}"
    axes.fill_between(at, share, color=color, alpha=0.45, linewidth=0, label=label)
    axes.plot(at, share, color=color)
    if largest <= end:
        axes.plot([largest, largest], [0, max(last, 0.12)], color=color, linestyle="--", clip_on=False)


def draw_segments(axes: Any, training: Training) -> None:
    """Draw the lengths of the segments as a histogram."""
    known = training.train_len
    edges = np.linspace(0.5, known + 0.5, min(BINS, known) + 1)
    share, _ = np.histogram(np.arange(1, known + 1), edges, weights=training.lengths[1:])
    axes.bar(edges[:-1], share / max(share.sum(), 1), np.diff(edges) * 0.9, align="edge", color=ORANGE)
    axes.set(xlabel="relative position i, and segment length (tokens)", ylabel="share of\nsegments")
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
