"""One picture of a skip method: f(i) beside that of ids without gaps, and the ids of one sample.

Left f(i) / f(0) over i; right the id of every token of one sample, and below which of the first ids a token has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.plots import percent, tick_tokens
from eval.positions.matrix import IntArray
from eval.positions.picture import evenly
from eval.positions.skips import Measures, SentenceOptions, SkipOptions
from lab.plots import BLUE, GREY, ORANGE, canvas
from lab.skip import run_lengths

FIRST = 256  # ids that are shown one by one at most
POINTS = 2048  # of a curve at most


def draw_skips(config: Any, options: SkipOptions, measures: list[Measures], sample: IntArray, output: Path) -> None:
    """Draw the picture.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 13, 5) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=(6, 1))
        draw_shares(figure.add_subplot(grid[:, 0]), measures)
        target_len = len(measures[0].shares)
        draw_ids(figure.add_subplot(grid[0, 1]), sample, target_len)
        draw_first(figure.add_subplot(grid[1, 1]), sample, min(FIRST, target_len))
        figure.suptitle(title(config, options), fontsize=11)


def title(config: Any, options: SkipOptions) -> str:
    """Name the method and the samples.

    Example:
        >>> from lab.skip.pose import Pose
        >>> title(Pose(target_len=8192), SkipOptions(n_tokens=2048))
        'pose: 100 samples of 2,048 tokens, target window 8,192'
    """
    words = f"{config.method}: {options.samples:,} samples of {options.n_tokens:,} tokens"
    if isinstance(options, SentenceOptions):
        words += f" in sentences of {options.sentence_tokens:g} on average"
    return f"{words}, target window {config.target_len:,}"


def draw_shares(axes: Any, measures: list[Measures]) -> None:
    """Draw f(i) / f(0) of the method and of ids without gaps."""
    target_len = len(measures[0].shares)
    at = evenly(target_len + 1, POINTS)
    method, *contiguous = [np.append(one.shares, 0.0)[at] for one in measures]  # no two ids are T apart
    for one, share, color in zip(measures[1:], contiguous, (GREY, ORANGE), strict=True):
        axes.plot(at, share, color=color, linestyle="--", label=f"ids {one.name}")
    axes.fill_between(at, method, color=BLUE, alpha=0.3, linewidth=0)
    axes.plot(at, method, color=BLUE, label=f"{measures[0].name}, mean of the samples")
    axes.plot([0], [1], color=BLUE, marker="o", clip_on=False)  # every token sees itself
    axes.set(title="share of the tokens that see one at distance i", ylabel="f(i) / f(0)")
    axes.set(xlabel="relative position i (tokens)", xlim=(0, target_len), ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    axes.legend(frameon=False, loc="upper right")
    tick_tokens(axes.xaxis, target_len)


def draw_ids(axes: Any, sample: IntArray, target_len: int) -> None:
    """Draw the id of every token."""
    n = len(sample)
    axes.plot([0, n], [0, n], color=GREY, linestyle="--", label=f"ids 0 .. {n - 1}")
    lengths = run_lengths(sample)
    ends = np.cumsum(lengths)
    first_ids = sample[ends - lengths]
    gap = np.full(len(lengths), np.nan)  # parts the lines of the runs
    tokens, ids = np.array([ends - lengths, ends, gap]), np.array([first_ids, first_ids + lengths, gap])
    axes.plot(tokens.T.ravel(), ids.T.ravel(), color=BLUE, label="the first sample's")
    axes.set(title="the id of every token", xlabel="token", ylabel="id", xlim=(0, n), ylim=(0, target_len))
    axes.legend(frameon=False, loc="upper left")
    tick_tokens(axes.xaxis, n)
    tick_tokens(axes.yaxis, target_len)


def draw_first(axes: Any, sample: IntArray, shown: int) -> None:
    """Draw which of the first ids a token has."""
    taken = np.isin(np.arange(shown), sample)
    axes.imshow(taken[None, :], aspect="auto", cmap="Blues", vmin=0, vmax=1.3, extent=(0, shown, 0, 1))
    axes.set(title=f"which of the ids 0 .. {shown - 1} a token has", yticks=[])
    axes.spines["left"].set_visible(False)
    tick_tokens(axes.xaxis, shown)
