"""What was asked and found, in three sentences made of the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from eval.report.data import Runs, folded

MOST_ARMS = 4  # that are named


def sentences(runs: Runs, threshold: float) -> Iterator[str]:
    """Write what was asked, how far the models reach, and how reach goes with f."""
    yield asked(runs)
    yield reached(runs, threshold)
    yield related(runs)


def asked(runs: Runs) -> str:
    """Write what was trained."""
    n, seeds, tokens = len(runs.runs), runs.runs["seed"].nunique(), runs.runs["tokens"].dropna()
    counts = (
        f"{n} run{'s' * (n > 1)}, {len(runs.arms)} arm{'s' * (len(runs.arms) > 1)}, {seeds} seed{'s' * (seeds > 1)}"
    )
    length = "" if tokens.empty else f" after {span(tokens)} tokens"
    windows = " and ".join(f"{window:,}" for window in sorted(runs.runs["window"].dropna().unique()))
    return f"Asked: how far into their windows of {windows} tokens do these models retrieve{length}? ({counts}.)"


def reached(runs: Runs, threshold: float) -> str:
    """Write how many runs fall short, and the mean reach of each arm."""
    known = runs.runs[runs.runs["reach"].notna() | runs.runs["first_distance"].notna()]
    if known.empty:
        return "Found: no run was probed for reach."
    whole = known[known["reach"].notna() & known["reach_high"].isna()]
    none = known[known["reach"].isna()]
    means = folded(known, ("arm",), "reach").head(MOST_ARMS)
    each = "; ".join(f"{row.arm}: {row.mean:,.0f}{limits(row)}" for row in means.itertuples(index=False))
    fails = f", {len(none)} fail at the shortest distance tested" if len(none) else ""
    ends = f"{len(known) - len(whole)} of {len(known)} runs fall short of the farthest distance tested{fails}"
    return f"Found: {ends}. Mean reach, one number in {threshold:.0%} of the tests: {each or 'none'}."


def limits(row: object) -> str:
    """Write n and limits of a mean over seeds."""
    n, low, high = (getattr(row, name) for name in ("count", "low", "high"))
    return f" (n = {n})" if n < 2 else f" ({low:,.0f} to {high:,.0f}, n = {n})"


def related(runs: Runs) -> str:
    """Write how reach and f at the reach go together."""
    rows = runs.runs.dropna(subset=["reach", "f_at_reach"])
    rows = rows[rows["f_at_reach"] > 0]
    if rows.empty:
        return "Position frequency at the reach: nothing to compare."
    f = f"f at the reach is {span(rows['f_at_reach'])} pairs"
    if len(rows) < 4:
        return f"At their reach, {f} (n = {len(rows)}: too few to relate the two)."
    rho, p = spearmanr(rows["reach"], rows["f_at_reach"])
    spread = float(np.log10(rows["f_at_reach"].max() / rows["f_at_reach"].min()))
    word = "f alone does not decide how far a model reaches" if spread > 0.5 else "f there is nearly the same in all"
    test = f"Spearman {rho:+.2f}, p = {p:.2g}, n = {len(rows)}"
    return f"At their reach, {f}, {spread:.1f} decades apart: {word} ({test})."


def span(values: pd.Series) -> str:
    """Write the range of some numbers, or the one they all are.

    Example:
        >>> span(pd.Series([5_000_000.0, 5_000_123.0])), span(pd.Series([1200, 53_000]))
        ('5M', '1.2K to 53K')
    """
    low, high = short(float(values.min())), short(float(values.max()))
    return low if low == high else f"{low} to {high}"


def short(value: float) -> str:
    """Write a number in three digits.

    Example:
        >>> short(1_250_000), short(999), short(1e12)
        ('1.25M', '999', '1T')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
