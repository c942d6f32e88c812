"""The tables behind a report's figures, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.report.data import Runs, shares
from lab.train.arms import differing

MOST_ROWS = 1500
LIMITS = {"low": "effective_length_low", "high": "effective_length_high"}


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
