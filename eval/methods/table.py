"""The table of eval.methods: the methods of one length, with limits and differences to rope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.engine.statistics import NAME, holm
from eval.engine.table import limits, to_text

LEVEL = 0.05
FORMS = {"n": ",", "passed": ",", "share": ".3f", "p": ".2g", "found": ".3f", "s/test": ".3f"}
Row = dict[str, Any]


def table(rows: Sequence[Row], length: int, confidence: float) -> str:
    """Format the methods of one length as a table."""
    adjusted = holm({row["compared_as"]: row["versus_rope"]["p"] for row in rows if row["versus_rope"]})
    shown = [
        {
            "method": row["compared_as"],
            "n": row["n"],
            "passed": row["passed"],
            "share": row["score"],
            f"{confidence:.6g} limits": limits(row, ".3f"),
            "to rope": difference(row, adjusted),
            "p": adjusted.get(row["compared_as"]),
            "found": row["numbers_found"],
            "s/test": row["seconds"] / row["n"] if row["seconds"] else None,
            "settings": row["method"],
        }
        for row in rows
    ]
    lines = ["", f"{length:,} tokens", to_text(shown, FORMS)]
    if adjusted:
        lines.append(f"* significant at {LEVEL:g}: {NAME}, p adjusted for {len(adjusted)} methods (Holm)")
    return "\n".join(lines)


def difference(row: Row, adjusted: dict[str, float]) -> str | None:
    """Write the difference to rope, starred where it is significant."""
    if not row["versus_rope"]:
        return None
    return f"{row['versus_rope']['difference']:+.3f}{'*' if adjusted[row['compared_as']] <= LEVEL else ' '}"
