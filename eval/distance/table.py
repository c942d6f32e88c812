"""The table of eval.distance: one method's share found by distance, and its reach."""

from __future__ import annotations

from typing import Any

from eval.distance.series import Series
from eval.engine.table import pivot, to_text


def table(series: Series) -> str:
    """Lay one method out for reading."""
    head = f"{'distance':>8} {'found':>6} {'tests':>6} {'share':>6}   {series.reach['confidence']:.6g} limits"
    lines = ["", series.method, f"{head:<48}{'log p':>8} {'f':>14}"]
    for row in series.rows:
        share = f"{row['distance']:>8,} {row['found']:>6,} {row['n']:>6,} {row['score']:>6.3f}"
        limits = f"{row['low']:.3f} to {row['high']:.3f}"
        lines.append(f"{share}   {limits:<17}{row['log_prob']:>8.2f} {count(row['f']):>14}")
    if series.four:
        shares = ", ".join(f"{row['distance']:,}: {row['score']:.2f} of {row['n']}" for row in series.four)
        lines.append(f"four-needle tests of training, at the nearest distance: {shares}")
    lines.append(reach_line(series.reach))
    if series.shorter:
        lines += ["share found in prompts that take with the answer, in tokens:", by_prompt(series)]
    return "\n".join(lines)


def by_prompt(series: Series) -> str:
    """Lay out the share found by distance and prompt, the shortest first; distances that do not fit are dashes."""
    whole = [{**row, "context": "the window"} for row in series.rows]
    grid = pivot([*whole, *series.shorter], "distance", "context")
    return to_text(grid[[*grid.columns[1:], "the window"]], ".3f")


def reach_line(row: dict[str, Any]) -> str:
    """Write reach with its limits and f.

    Example:
        >>> row = {"threshold": 0.8, "first_distance": 20, "last_distance": 168, "f_at_reach": 21000}
        >>> reach_line({**row, "reach": 128.9, "reach_low": 120.0, "reach_high": 133.5})
        'reach 128.9 at threshold 0.8, within 120.0 to 133.5; f 21,000'
        >>> reach_line({**row, "reach": 168.0, "reach_low": None, "reach_high": None})
        'reach 168, the end, at threshold 0.8, within <20 to the end; f 21,000'
        >>> reach_line({**row, "reach": None, "reach_low": None, "reach_high": 64.0, "f_at_reach": None})
        'reach <20 at threshold 0.8, within <20 to 64.0; f -'
    """
    reach, low, high = reach_words(row)
    return f"reach {reach} at threshold {row['threshold']:g}, within {low} to {high}; f {count(row['f_at_reach'])}"


def reach_words(row: dict[str, Any]) -> tuple[str, str, str]:
    """Write reach and its limits."""
    below = f"<{row['first_distance']:,}"
    reach = below if row["reach"] is None else f"{row['reach']:,.1f}"
    if row["reach"] == row["last_distance"]:
        reach = f"{row['last_distance']:,}, the end,"
    low = below if row["reach_low"] is None else f"{row['reach_low']:,.1f}"
    return reach, low, "the end" if row["reach_high"] is None else f"{row['reach_high']:,.1f}"


def count(number: int | None) -> str:
    """Write f, or a dash where nothing was counted."""
    return "-" if number is None else f"{number:,}"
