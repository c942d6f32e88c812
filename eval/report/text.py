"""The text of a report: what was asked and found in three sentences, and the tables behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.report.data import Runs, at_end, folded, shares
from lab.train.arms import differing

MOST_ROWS = 1500  # of a table
LIMITS = {"low": "effective_length_low", "high": "effective_length_high"}
MOST_ARMS = 4  # that are named
FEWEST = 4  # arms that are ranked
FAR_APART = 3.0  # ratio of two f above which f at the reach is not one number


def sentences(runs: Runs) -> Iterator[str]:
    """Write what was asked, how far the models reach, and how reach goes with f."""
    yield asked(runs)
    yield reached(runs)
    yield related(runs)


def asked(runs: Runs) -> str:
    """Write what was trained."""
    tokens, sizes = runs.runs["tokens"].dropna(), sorted(runs.runs["window"].dropna().unique())
    after = "" if tokens.empty else f" after {span(tokens)} tokens of training"
    windows = listed([f"{window:,.0f}" for window in sizes])
    models = "this model" if len(runs.runs) == 1 else "these models"
    noun = "its window" if len(runs.runs) == 1 else "their windows" if len(sizes) > 1 else "their window"
    counts = (counted(len(runs.runs), "run"), counted(len(runs.arms), "arm"))
    seeds = counted(runs.runs["seed"].nunique(), "seed")
    question = f"how far back in {noun} of {windows} tokens can {models} find a number{after}?"
    return f"Asked: {question} ({', '.join((*counts, seeds))})"


def reached(runs: Runs) -> str:
    """Write how many runs fall short, and the mean reach of each arm."""
    known = runs.runs[runs.runs["reach"].notna() | runs.runs["first_distance"].notna()]
    if known.empty:
        return "Found: no run was probed for reach."
    ends = at_end(known)
    none, n = int(known["reach"].isna().sum()), len(known)
    parts = [
        f"{n - int(ends.sum())} of {counted(n, 'run')} {'falls' if n == 1 else 'fall'} short of the farthest distance"
    ]
    if none:
        parts.append(f"{none} of them already at the shortest")
    where = "its own threshold" if runs.threshold is None else f"{runs.threshold:.0%} of the tests"
    means = folded(known, ("arm",), "reach")
    if means.empty:
        return f"Found: {', '.join(parts)}; there is no reach to compare."
    open_arms = set(known["arm"][ends])
    each = "; ".join(mean_of(row, row.arm in open_arms, len(means) > 1) for row in means.head(MOST_ARMS).itertuples())
    more = f"; {len(means) - MOST_ARMS} more arms are in the tables" if len(means) > MOST_ARMS else ""
    kind = "Reach" if n == 1 else "Mean reach"
    left = " of the runs that have one" if none else ""
    return f"Found: {', '.join(parts)}. {kind}{left} (tokens; one number found in {where}): {each}{more}."


def mean_of(row: Any, is_open: bool, named: bool) -> str:
    """Write the mean reach of an arm, with its limits over seeds and n."""
    name, least = f"{row.arm}: " if named else "", "at least " if is_open else ""
    limits = "" if np.isnan(row.low) else f"95% limits {max(row.low, 0):,.0f} to {row.high:,.0f}, "
    return f"{name}{least}{row.mean:,.0f} ({limits}n = {row.count})"


def related(runs: Runs) -> str:
    """Write how reach and f at the reach go together."""
    rows = runs.runs.dropna(subset=["reach", "f_at_reach"])
    rows = rows[rows["f_at_reach"] > 0]
    if rows.empty:
        return "Position frequency: no run has a reach with f counted there."
    if len(rows) == 1:
        return f"Position frequency: at its reach, f is {span(rows['f_at_reach'])} pairs (n = 1)."
    ratio = float(rows["f_at_reach"].max() / rows["f_at_reach"].min())
    apart = f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"
    verdict = "so f alone does not decide reach" if ratio > FAR_APART else "too close to separate f from other causes"
    f = f"f at the reach is {span(rows['f_at_reach'])} pairs, a factor of {apart} apart, {verdict}"
    return f"Position frequency: {f} (n = {len(rows)} runs{ranked(rows)})."


def ranked(rows: pd.DataFrame) -> str:
    """Write the rank correlation of reach and f over arms; within one, f falls with distance by itself."""
    means = rows.astype({"reach": float, "f_at_reach": float}).groupby("arm")[["reach", "f_at_reach"]].mean()
    if len(means) < FEWEST or (means.nunique() < 2).any():
        return ""
    from scipy.stats import spearmanr

    rho, p = spearmanr(means["reach"], means["f_at_reach"])
    value = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    return f"; Spearman's correlation of the two over {len(means)} arms is {rho:+.2f}, {value}"


def counted(n: int, noun: str) -> str:
    """Write a number of things.

    Example:
        >>> counted(1, "run"), counted(1200, "run")
        ('1 run', '1,200 runs')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Join names.

    Example:
        >>> listed(["128"]), listed(["128", "192"]), listed(["128", "192", "256"])
        ('128', '128 and 192', '128, 192 and 256')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "unknown"


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


class Table(NamedTuple):
    """One table: its title, columns, and rows of text; `is_number` has a value for each column."""

    title: str
    columns: list[str]
    is_number: list[bool]
    rows: list[list[str]]
    note: str


def tables(runs: Runs) -> Iterator[Table]:
    """Write the tables of the page that have rows."""
    for title, frame in frames(runs).items():
        if not frame.empty:
            yield as_text(title, frame)


def frames(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return the tables of the page by title."""
    settings = pd.DataFrame(runs.settings).T
    apart = settings[differing(runs.settings)].rename_axis("run").reset_index()
    same = settings.loc[:, settings.astype(str).nunique() <= 1]
    heat = runs.needles.groupby(["arm", "length", "part"], sort=False)[["share", "n"]]
    return {
        "Runs at their last probe": runs.runs.rename(columns=LIMITS),
        "Reach by position method, last probe": runs.reaches,
        "Settings that differ between arms": apart if len(apart.columns) > 1 else apart.head(0),
        "Numbers found by distance, last probe": shares(runs.distances, "distance"),
        "Numbers found by distance, several in a test": shares(runs.several.assign(f=np.nan), "distance"),
        "Tests passed by length, last probe": shares(runs.lengths, "length"),
        "Needles found by length and tenth of the text, last probe": heat.agg(
            {"share": "mean", "n": "sum"}
        ).reset_index(),
        "Every probe": runs.probes.drop(columns="probe").rename(columns=LIMITS),
        "Settings that all share": pd.DataFrame({"setting": same.columns, "value": same.iloc[0].to_numpy()}),
    }


def as_text(title: str, frame: pd.DataFrame) -> Table:
    """Write a frame as text, without its empty columns."""
    frame = frame.dropna(axis="columns", how="all")
    numbers = [is_numeric(frame[name]) for name in frame.columns]
    shown = frame.head(MOST_ROWS)
    columns = [[text_of(value) for value in shown[name]] for name in frame.columns]
    note = f"The first {MOST_ROWS:,} of {len(frame):,} rows." if len(frame) > MOST_ROWS else ""
    names = [str(name).replace("_", " ") for name in frame.columns]
    return Table(title, names, numbers, [list(row) for row in zip(*columns, strict=True)], note)


def is_numeric(values: pd.Series) -> bool:
    """Return whether all filled values are numbers."""
    return all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values.dropna())


def text_of(value: Any) -> str:
    """Write a value; a number in four digits, without an exponent.

    Example:
        >>> [text_of(value) for value in (5_000_000, 4980.46, 0.123456, 3e-5, float("nan"), None, True, "a")]
        ['5,000,000', '4,980', '0.1235', '0.00003', '', '', 'True', 'a']
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return "" if value is None else str(value)
    if np.isnan(value):
        return ""
    if float(value).is_integer() or abs(float(value)) >= 1000:
        return f"{value:,.0f}"
    return np.format_float_positional(float(f"{value:.4g}"), trim="-")
