"""Shares of tests with limits, McNemar's exact test of two methods on the same tests, and Holm's correction.

Of the tests that only one of the two passes, b by the first alone and c by the second alone, each is as likely to be
the one as the other where the methods pass equally often:

    p = min(1, 2 P(X <= min(b, c))),   X ~ Binomial(b + c, 1/2)

Tests that both pass or both fail do not inform the comparison. Among m comparisons, p rising, Holm's adjusted
values are

    a_k = max over j <= k of min(1, (m - j + 1) p_j)

and calling those at or below a level significant keeps the probability of any false call within the level.

Source: McNemar 1947, in its exact form; Holm 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from scipy.special import bdtr  # scipy.stats takes half a second more to import

from eval.engine.rows import Row
from eval.engine.table import limits, to_text
from lab.probe.intervals import share_limits

NAME = "exact McNemar on the same tests"
BASE, LEVEL = "rope", 0.05
FORMS = {"n": ",", "passed": ",", "share": ".3f", "p": ".2g", "found": ".3f", "s/test": ".3f"}


@dataclass(frozen=True)
class Paired:
    """Two methods on the same tests: how many only the first passes, and how many only the second."""

    tests: int
    only_first: int
    only_second: int

    @property
    def difference(self) -> float:
        """Share that the second passes less the share that the first passes."""
        return (self.only_second - self.only_first) / self.tests

    @property
    def p(self) -> float:
        """Probability of a difference as large as this one or larger where there is none.

        Example:
            >>> Paired(10, only_first=0, only_second=5).p, Paired(10, 3, 3).p
            (0.0625, 1.0)
        """
        n = self.only_first + self.only_second
        return min(1.0, 2 * float(bdtr(min(self.only_first, self.only_second), n, 0.5))) if n else 1.0

    @property
    def row(self) -> dict[str, Any]:
        """The comparison as stored in results."""
        counts = {"tests": self.tests, "only_first": self.only_first, "only_second": self.only_second}
        return {**counts, "difference": self.difference, "p": self.p, "test": NAME}


def pair(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Compare the outcomes of the same tests in the same order.

    Example:
        >>> pair([True, True, False, False], [True, False, True, True])
        Paired(tests=4, only_first=1, only_second=2)
    """
    both = list(zip(first, second, strict=True))
    return Paired(len(both), both.count((True, False)), both.count((False, True)))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """Adjust the p of several comparisons, by name.

    Example:
        >>> holm({"a": 0.25, "b": 0.125, "c": 1.0})
        {'a': 0.5, 'b': 0.375, 'c': 1.0}
    """
    rising = sorted(values, key=lambda name: values[name])
    raised = accumulate((min(1.0, (len(rising) - k) * values[name]) for k, name in enumerate(rising)), max)
    adjusted = dict(zip(rising, raised, strict=True))
    return {name: adjusted[name] for name in values}


def share(passed: int, tests: int, confidence: float) -> dict[str, Any]:
    """Return a share with its exact limits; nulls where there are no tests."""
    if not tests:
        return {"score": None, "low": None, "high": None}
    low, high = share_limits(passed, tests, confidence)
    return {"score": passed / tests, "low": low, "high": high}


def methods_table(rows: Sequence[Row]) -> str:
    """Write the methods of one length, with limits and differences to rope."""
    adjusted = holm({row["compared_as"]: row["versus_rope"]["p"] for row in rows if row["versus_rope"]})

    def difference(row: Row) -> str | None:
        if not row["versus_rope"]:
            return None
        return f"{row['versus_rope']['difference']:+.3f}{'*' if adjusted[row['compared_as']] <= LEVEL else ' '}"

    shown = [
        {
            "method": row["compared_as"],
            "n": row["n"],
            "passed": row["passed"],
            "share": row["score"],
            f"{row['confidence']:.6g} limits": limits(row, ".3f"),
            "to rope": difference(row),
            "p": adjusted.get(row["compared_as"]),
            "found": row["numbers_found"],
            "s/test": row["seconds"] / row["n"] if row["seconds"] else None,
            "settings": row["method"],
        }
        for row in rows
    ]
    lines = ["", f"{rows[0]['length']:,} tokens", to_text(shown, FORMS)]
    if adjusted:
        lines.append(f"* significant at {LEVEL:g}: {NAME}, p adjusted for {len(adjusted)} methods (Holm)")
    return "\n".join(lines)
