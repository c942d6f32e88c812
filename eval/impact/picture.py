"""One picture of impactful tokens: what the marked targets are, along the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.plots import canvas

N_COLORS, GREY = 10, 7  # of the colour map, and the index of grey in it: for labels without a colour of their own


def draw_shares(
    labels: list[str], shares: npt.NDArray[np.float64], edges: npt.NDArray[np.int64], title: str, output: Path
) -> None:
    """Draw a picture like Figure 4 of arXiv:2409.00509: a line for each label, the most frequent ones named.

    Shapes: shares (n_labels, n_stretches) of the marked targets between `edges` (n_stretches + 1,).
    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    order = np.argsort(-shares.mean(1), kind="stable")
    order = order[shares[order].any(1)]
    with canvas(output, 8, 4.5) as figure:
        from matplotlib import colormaps

        axes, middles = figure.subplots(), (edges[1:] + edges[:-1]) / 2
        colors = [colormaps["tab10"](number) for number in range(N_COLORS)]
        grey = colors.pop(GREY)
        named, others = order[: len(colors)], order[len(colors) :]
        for color, label in zip(colors, named):
            axes.plot(middles, shares[label], color=color, linewidth=1.5, label=labels[label])
        if len(others):
            rest, name = shares[others].sum(0), f"{len(others):,} others"
            axes.plot(middles, rest, color=grey, linewidth=1.5, linestyle="--", label=name)
        axes.set_title(title, fontsize=10)
        axes.set(xlabel="position in the text (tokens)", ylabel="share of the marked targets")
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
