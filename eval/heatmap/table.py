"""The tables of eval.heatmap: numbers found by depth and length, and where failures lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.engine.table import limits, pivot, to_text
from eval.heatmap.depths import peak

Row = dict[str, Any]
Rows = Mapping[int, Sequence[Row]]


def found_table(cells: Rows) -> str:
    """Format the heat map, in percent; depths at which no number was hidden are left out."""
    shown = [
        {"depth": f"{row['from_depth']:.0%}-{row['to_depth']:.0%}", "length": f"{length:,}", "score": row["score"]}
        for length, rows in cells.items()
        for row in rows
    ]
    return to_text(100 * pivot(shown, "depth", "length").astype(float).dropna(how="all"), ".0f")


def thirds_table(tests: Rows, thirds: Rows, confidence: float) -> str:
    """Format the thirds: of the tests that miss a number, how many miss it where."""
    shown = [
        {
            "length": length,
            "tests": len(tests[length]),
            "miss any": rows[0]["n"],
            **{row["third"]: share(row) for row in rows},
            "peak": peak(rows),
        }
        for length, rows in thirds.items()
    ]
    title = f"share of failures by third of the text, {confidence:.6g} limits"
    return f"{title}\n{to_text(shown, dict.fromkeys(('length', 'tests', 'miss any'), ','))}"


def share(row: Row) -> str | None:
    """Write a share with its limits.

    Example:
        >>> share({"score": 0.5, "low": 0.187, "high": 0.813}), share({"score": None})
        ('0.50 (0.19 to 0.81)', None)
    """
    return None if row["score"] is None else f"{row['score']:.2f} ({limits(row, '.2f')})"
