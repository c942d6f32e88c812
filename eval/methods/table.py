"""The table of eval.methods: the methods of one length, with limits and differences to rope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.common.statistics import NAME, holm

LEVEL = 0.05
Row = dict[str, Any]


def table(rows: Sequence[Row], length: int, confidence: float) -> str:
    """Lay the methods of one length out for reading."""
    adjusted = holm({row["compared_as"]: row["versus_rope"]["p"] for row in rows if row["versus_rope"]})
    limits = f"{confidence:.6g} limits"
    judged = f"{'to rope':>8} {'p':>10} {'found':>6} {'s/test':>7}"
    lines = ["", f"{length:,} tokens"]
    lines.append(f"{'method':<12} {'n':>6} {'passed':>7} {'share':>7}   {limits:<16} {judged}  settings")
    for row in rows:
        versus, name = row["versus_rope"], row["compared_as"]
        difference, p = f"{'-':>8}", f"{'-':>10}"
        if versus:
            mark = "*" if adjusted[name] <= LEVEL else " "
            difference, p = f"{versus['difference']:>+7.3f}{mark}", f"{adjusted[name]:>10.2g}"
        pace = f"{row['seconds'] / row['n']:>7.3f}" if row["seconds"] else f"{'-':>7}"
        bounds = f"{row['low']:.3f} to {row['high']:.3f}"
        lines.append(
            f"{name:<12} {row['n']:>6,} {row['passed']:>7,} {row['score']:>7.3f}   {bounds:<16} {difference} {p} "
            f"{row['numbers_found']:>6.3f} {pace}  {row['method']}"
        )
    if adjusted:
        lines.append(f"* significant at {LEVEL:g}: {NAME}, p adjusted for {len(adjusted)} methods (Holm)")
    return "\n".join(lines)
