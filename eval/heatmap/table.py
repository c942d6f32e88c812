"""The tables of eval.heatmap: numbers found by depth and length, and where failures lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.common.retrieval import grid_table
from eval.heatmap.depths import THIRDS, peak

Row = dict[str, Any]
Rows = Mapping[int, Sequence[Row]]


def found_table(cells: Rows) -> str:
    """Lay the heat map out for reading."""
    scores = {
        (f"{row['from_depth']:.0%}-{row['to_depth']:.0%}", f"{length:,}"): row["score"]
        for length, rows in cells.items()
        for row in rows
        if row["score"] is not None
    }
    depths = list(dict.fromkeys(depth for depth, _ in scores))
    ordered = {(depth, f"{length:,}"): None for depth in depths for length in cells}
    return grid_table({place: scores[place] for place in ordered if place in scores}, "depth")


def thirds_table(tests: Rows, thirds: Rows, confidence: float) -> str:
    """Lay the thirds out for reading: of the tests that miss a number, how many miss it where."""
    head = f"{'length':>8} {'tests':>7} {'miss any':>9}" + "".join(f"{name:>20}" for name in THIRDS)
    lines = [f"share of failures by third of the text, {confidence:.6g} limits", f"{head}   peak"]
    for length, rows in thirds.items():
        shares = "".join(f"{spell(row):>20}" for row in rows)
        lines.append(f"{length:>8,} {len(tests[length]):>7,} {rows[0]['n']:>9,}{shares}   {peak(rows) or '-'}")
    return "\n".join(lines)


def spell(row: Row) -> str:
    """Write a share with its limits.

    Example:
        >>> spell({"score": 0.5, "low": 0.187, "high": 0.813}), spell({"score": None})
        ('0.50 (0.19 to 0.81)', '-')
    """
    return "-" if row["score"] is None else f"{row['score']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
