"""The share of four-needle numbers found by their distance, with limits from resampling whole cases.

The numbers of one case share a prompt and an answer, so that their outcomes depend on each other and exact limits of
independent tests would be too narrow. The bootstrap draws as many cases as there are, with replacement and each with
all of its numbers, and takes the limits from the quantiles of the resampled shares (Efron 1979). Where all numbers of
a bin are found, or none is, every resampled share is the same and the limits are that share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RESAMPLES = 1000


def found_by_distance(
    cases: Sequence[Mapping[str, Any]],
    distances: Sequence[int],
    *,
    confidence: float,
    seed: int,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """Assign each number to the nearest of the distances, rising, and compute each one's share found with limits.

    `cases` are rows with `distances` and `found_each`, one entry a number; older rows have neither and are left out, as
    are distances without a number.

    Example:
        >>> cases = [{"distances": [90, 50], "found_each": [False, True]}, {"distances": [52], "found_each": [True]}]
        >>> rows = found_by_distance(cases, [50, 100], confidence=0.9, seed=0)
        >>> [(row["distance"], row["n"], row["found"]) for row in rows]
        [(50, 2, 2), (100, 1, 0)]
    """
    known = [case for case in cases if "distances" in case and "found_each" in case]
    tests, numbers = np.zeros((2, len(known), len(distances)))
    middles = (np.array(distances[1:]) + np.array(distances[:-1])) / 2
    for row, case in enumerate(known):
        bins = np.searchsorted(middles, case["distances"])
        np.add.at(tests[row], bins, 1)
        np.add.at(numbers[row], bins, case["found_each"])
    rng, shares = np.random.default_rng(seed), np.full((resamples, len(distances)), np.nan)
    for number in range(resamples if known else 0):
        times = np.bincount(rng.integers(0, len(known), len(known)), minlength=len(known))
        drawn = times @ tests
        np.divide(times @ numbers, drawn, out=shares[number], where=drawn > 0)
    rows = []
    for place, (distance, n, found) in enumerate(zip(distances, tests.sum(0), numbers.sum(0), strict=True)):
        if n:
            low, high = np.nanquantile(shares[:, place], [(1 - confidence) / 2, (1 + confidence) / 2])
            share = {"score": float(found / n), "low": float(low), "high": float(high)}
            rows.append({"distance": int(distance), "n": int(n), "found": int(found), **share})
    return rows
