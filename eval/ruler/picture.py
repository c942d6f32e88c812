"""One picture of RULER scores: a line for each category and the average of all tasks, by length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.engine.plots import mark_window
from eval.ruler.results import Scores, averages, effective_length, lengths_of
from eval.ruler.tasks import CATEGORIES
from lab.plots import BLUE, GREY, ORANGE, canvas

LOOKS: dict[str, dict[str, Any]] = {  # markers differ in size and shape, as lines may coincide
    CATEGORIES[0]: {"color": BLUE, "marker": "o", "markersize": 8, "markerfacecolor": "none"},
    CATEGORIES[1]: {"color": ORANGE, "marker": "s", "markersize": 5},
    CATEGORIES[2]: {"color": "#338855", "marker": "^", "markersize": 5},
    CATEGORIES[3]: {"color": "#8855aa", "marker": "x", "markersize": 5},
    "average": {"color": "#222222", "marker": "D", "markersize": 9, "linewidth": 5, "alpha": 0.3},
}
CROWDED = 8  # number of lengths beyond which their labels are slanted


def draw_scores(scores: Scores, title: str, threshold: float, train_len: int | None, output: Path) -> None:
    """Draw scores by length.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    lengths = lengths_of(scores)
    at = {length: averages(scores, length) for length in lengths}
    with canvas(output, 7, 4.4) as figure:
        axes = figure.subplots()
        for name in at[lengths[0]]:
            label = f"average of {len({task for task, _ in scores})} tasks" if name == "average" else name
            values = [at[length][name] for length in lengths]
            axes.plot(lengths, values, label=label, clip_on=False, zorder=2 if name == "average" else 3, **LOOKS[name])
        axes.axhline(threshold, color=GREY, linestyle=":", linewidth=1)
        beside = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"threshold\n{threshold:g}", (1, threshold), va="center", color=GREY, **beside)
        axes.set_xscale("log", base=2)
        crowded = {"rotation": 45, "ha": "right"} if len(lengths) > CROWDED else {}
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], **crowded)
        axes.minorticks_off()
        axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
        mark_window(axes, train_len, lengths[0], lengths[-1])
        axes.set(xlabel="length (tokens, prompt and answer)", ylabel="score (%)", ylim=(0, 100))
        reached = effective_length(scores, threshold)
        axes.set_title(f"{title}\neffective length {reached:,}", fontsize=10, pad=18)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
