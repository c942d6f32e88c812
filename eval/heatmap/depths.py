"""Which of a test's numbers were found, by their depth in the text (arXiv:2410.18745, Figure 4 and Table 4).

Depth is the share of the haystack before a needle, 0 at its beginning. The n needles of a test lie one in each n-th
of the haystack's first 99%, and cells are equal parts of the same 99%, a whole number of them to a needle. So a test
has one number in a cell at most, the numbers of a cell come from different tests, and the share found has the exact
limits of Clopper and Pearson.

Table 4 asks in which third of the document failures lie. A third may hold several numbers of a test, which do not fail
independently; so every test that misses any number counts once, by one of its missed numbers, drawn with equal chances
from the seed of the test. Then the thirds' counts are of independent failures, and the share of each third has exact
limits too. The thirds are of the first 99%: 0-33%, 33-66% and 66-99%, each seen equally often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from eval.engine.statistics import share
from lab.probe.needles import DEPTH_RANGE

THIRDS = ("0-33%", "33-66%", "66-99%")
DRAW = 4  # keeps the draw of a failure apart from the test's own draws
Found = Callable[[str, list[str]], int]
Row = dict[str, Any]


def was_found(row: Mapping[str, Any], found: Found) -> list[bool]:
    """Return for each number of a test whether its answer holds it."""
    return [found(row["answer"], [number]) > 0 for number in row["numbers"]]


def cell_of(depth: float, needle: int, needles: int, depths: int) -> int:
    """Find the cell of a depth among `depths` equal ones; needle k stays in its own n-th, which roundings may leave.

    Example:
        >>> cell_of(0.0, 0, 4, 12), cell_of(0.25, 1, 4, 12), cell_of(0.247499, 1, 4, 12), cell_of(0.98, 3, 4, 12)
        (0, 3, 3, 11)
    """
    assert depths % needles == 0, "the command refuses other numbers of depths"
    own = depths // needles
    return min(max(int(depth / DEPTH_RANGE * depths), needle * own), (needle + 1) * own - 1)


def third_of(depth: float) -> int:
    """Find the third of a depth.

    Example:
        >>> third_of(0.32), third_of(0.34), third_of(0.65), third_of(0.67), third_of(0.99)
        (0, 1, 1, 2, 2)
    """
    return min(2, int(3 * depth / DEPTH_RANGE))


def depth_rows(tests: Sequence[Row], found: Found, depths: int, confidence: float) -> list[Row]:
    """Count the numbers of one length's tests by depth: a row for each cell, `depth` being its middle."""
    totals, hits = np.zeros(depths, dtype=int), np.zeros(depths, dtype=int)
    for row in tests:
        for needle, (depth, hit) in enumerate(zip(row["depths"], was_found(row, found), strict=True)):
            cell = cell_of(depth, needle, len(row["depths"]), depths)
            totals[cell] += 1
            hits[cell] += hit
    edges = [round(DEPTH_RANGE * k / depths, 6) for k in range(depths + 1)]
    return [
        {
            "from_depth": edges[cell],
            "to_depth": edges[cell + 1],
            "n": int(totals[cell]),
            "found": int(hits[cell]),
            **share(int(hits[cell]), int(totals[cell]), confidence),
        }
        for cell in range(depths)
    ]


def third_rows(tests: Sequence[Row], found: Found, seed: int, confidence: float) -> list[Row]:
    """Count the failures of one length's tests by third; `n` is the tests that miss a number."""
    numbers, missed, failures = (np.zeros(3, dtype=int) for _ in range(3))
    for row in tests:
        thirds = [third_of(depth) for depth in row["depths"]]
        lost = [third for third, hit in zip(thirds, was_found(row, found), strict=True) if not hit]
        np.add.at(numbers, thirds, 1)
        np.add.at(missed, lost, 1)
        if lost:
            generator = np.random.default_rng([seed, row["length"], row["test"], DRAW])
            failures[lost[generator.integers(len(lost))]] += 1
    failing = int(failures.sum())
    return [
        {
            "third": THIRDS[third],
            "numbers": int(numbers[third]),
            "missed": int(missed[third]),
            "n": failing,
            "failures": int(failures[third]),
            **share(int(failures[third]), failing, confidence),
        }
        for third in range(3)
    ]


def peak(thirds: Sequence[Row]) -> str | None:
    """Name the third with more failures than any other; None where two have as many.

    Example:
        >>> peak([{"third": name, "failures": count} for name, count in zip(THIRDS, (2, 5, 1))])
        '33-66%'
    """
    least, most = sorted(thirds, key=lambda row: row["failures"])[-2:]
    return most["third"] if most["failures"] > least["failures"] else None
