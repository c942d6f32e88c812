"""Leaves every group of points out in turn, predicts it from the others, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.engine.table import to_text
from eval.plan.law import Law, Point, fit

Row = dict[str, Any]


def held_out(points: Sequence[Point], confidence: float) -> str:
    """Predict every group of points from the others, and lay out the errors."""
    groups = list(dict.fromkeys(point.group for point in points))
    if len(groups) < 2:
        return f"held out: nothing, all points are of {groups[0]}"
    rows, alone = [], []
    for group in groups:
        others = [point for point in points if point.group != group]
        if all(point.open for point in others):
            alone.append(f"{group} cannot be predicted: the law would be fitted to no other point")
            continue
        law = fit(others, confidence)
        rows += [{"left out": group, **prediction(law, point)} for point in points if point.group == group]
    parts = ["left out in turn and predicted from the others:", *alone]
    return "\n".join([*parts, *([to_text(rows, {"error": "+.0%"}), overall(rows)] if rows else ())])


def prediction(law: Law, point: Point) -> Row:
    """Predict one point: its reach, or, where its tokens are unknown, its f; None for what is not known.

    The error of an open point is how far the prediction falls short of it, 0 where it does not.
    """
    if point.tokens is None or point.per_token is None:
        f = law.needed(point.reach)
        return columns(f"f {point.f:.3g}", f"f {f:.3g}", None, f / point.f - 1, None)
    found = law.expect(point.per_token, point.tokens)
    error = (found.reach or 0) / point.reach - 1
    if point.open:
        return columns(f">={point.reach:,.0f}", found.words, found.limits, min(error, 0.0), None)
    holds = None if found.low is None else found.low <= point.reach <= (found.high or 0) + 1  # reach has fractions
    return columns(f"{point.reach:,.0f}", found.words, found.limits, error, holds)


def columns(measured: str, predicted: str, limits: str | None, error: float, holds: bool | None) -> Row:
    """Name the columns of one prediction."""
    within = None if holds is None else ("no", "yes")[holds]
    return {"measured": measured, "predicted": predicted, "limits": limits, "within": within, "error": error}


def overall(rows: Sequence[Row]) -> str:
    """Sum up the predictions.

    Example:
        >>> overall([{"error": -0.1, "within": "yes"}, {"error": 0.3, "within": "no"}, {"error": 0.2, "within": None}])
        'mean error, signs aside: 20% of 3; 1 of 2 within the limits'
    """
    known = [row["within"] for row in rows if row["within"]]
    text = f"mean error, signs aside: {np.mean([abs(row['error']) for row in rows]):.0%} of {len(rows)}"
    return text + (f"; {known.count('yes')} of {len(known)} within the limits" if known else "")
