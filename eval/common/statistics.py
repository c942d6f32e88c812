"""Shares of tests with their limits, as results hold them."""

from __future__ import annotations

from typing import Any

from lab.probe.intervals import share_limits

Row = dict[str, Any]


def share(passed: int, tests: int, confidence: float) -> Row:
    """Give a share with its exact limits; nulls where there are no tests."""
    if not tests:
        return {"score": None, "low": None, "high": None}
    low, high = share_limits(passed, tests, confidence)
    return {"score": passed / tests, "low": low, "high": high}
