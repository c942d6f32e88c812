"""The picture of a plan: f by distance for every window and mode, the law, and the reach where they cross."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.plan.documents import Documents
from eval.plan.law import Law
from eval.plan.options import PlanOptions
from lab.plots import GREY, PALETTE, canvas


def draw_plan(documents: Documents, options: PlanOptions, laws: Sequence[Law], output: Path) -> None:
    """Draw the picture.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    with canvas(output, 7, 4.5) as figure:
        axes = figure.subplots()
        i = np.arange(1, max(options.window))
        for law in laws:
            needed, margin = law.log_needed(i.astype(float)), law.margin(i.astype(float))
            axes.plot(i, np.exp(needed), color=GREY, linestyle="--", label="f that the law asks for")
            if margin is not None:
                axes.fill_between(i, np.exp(needed - margin), np.exp(needed + margin), color=GREY, alpha=0.15, lw=0)
        for number, (window, mode) in enumerate(options.arms):
            color = PALETTE[number % len(PALETTE)]
            per_token = documents.frequency(window, mode)
            axes.plot(per_token * options.tokens, color=color, label=f"window {window:,}, {mode}")
            for law in laws:
                reach = law.expect(per_token, options.tokens).reach
                if reach is not None:
                    axes.plot(reach, per_token[reach] * options.tokens, "o", color=color)
                    axes.annotate(
                        f"{reach:,}",
                        (reach, per_token[reach] * options.tokens),
                        textcoords="offset points",
                        xytext=(6, 6),
                        color=color,
                    )
        axes.set(xlabel="relative position i (tokens)", ylabel=f"f(i) after {options.tokens:.3g} tokens")
        axes.set(yscale="log", xlim=(0, None), ylim=(options.tokens / 3e3, options.tokens * 1.5))
        axes.legend(frameon=False)
