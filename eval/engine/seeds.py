"""Tests of means over seeds.

Seeds of one arm may agree by chance, as 0 of 64 tests in each of five. The variance of a share of n tests in one seed
is therefore that of its tests at least, with one passed and one failed more: q (1 - q) / (n + 2).

Source: Student 1908; Welch 1947; Agresti and Caffo 2000 for the two tests more.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lab.runs.arms import FEWEST

SEEDS_PAIRED, SEEDS = "paired t over the same seeds", "Welch's t over seeds"
LEVEL = 0.05
ROUNDED = 1e-9  # share of the largest value by which values differ that are the same but for rounding


class Verdict(NamedTuple):
    """The name of a test and its p."""

    test: str | None = None
    p: float = np.nan


NONE = Verdict()


def compare_over_seeds(first: Mapping[Any, float], second: Mapping[Any, float], floor: float = 0.0) -> Verdict:
    """Test two means over seeds by the paired t test, or by Welch's if the seeds differ; FEWEST seeds are needed.

    `floor` is the least variance of a number of one seed.
    """
    from scipy import stats

    if min(len(first), len(second)) < FEWEST:
        return NONE
    # The same seeds share their data and first weights, so that their differences vary less than the means.
    if set(first) == set(second):
        return paired_t([second[seed] - first[seed] for seed in first], SEEDS_PAIRED, 2 * floor)
    arms = [[*first.values()], [*second.values()]]
    if not floor and not any(vary(values) for values in arms):
        return NONE
    variances = [max(float(np.var(values, ddof=1)), floor) for values in arms]
    means = [float(np.mean(values)) for values in arms]
    sizes = [*map(len, arms)]
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # one arm may have no spread
        ours, theirs = zip(means, np.sqrt(variances), sizes, strict=True)
        p = float(stats.ttest_ind_from_stats(*ours, *theirs, equal_var=False).pvalue)
    return Verdict(SEEDS, p) if np.isfinite(p) else NONE


def paired_t(differences: Sequence[float], name: str, floor: float = 0.0) -> Verdict:
    """Test a mean difference of zero, by t with a least variance of one difference.

    There is no test if all differences are equal, but not 0, without a floor.

    Example:
        >>> paired_t([0.0, 0.0], "t").p, paired_t([1.0], "t") == NONE, paired_t([0.5, 0.5], "t") == NONE
        (1.0, True, True)
        >>> paired_t([1.0] * 5, "t", floor=0.0004).p < 1e-6
        True
    """
    from scipy import stats

    n = len(differences)
    if not any(differences):
        return Verdict(name, 1.0)
    if n < 2 or not (floor or vary(differences)):
        return NONE
    mean = float(np.mean(differences))
    deviation = max(float(np.var(differences, ddof=1)), floor) ** 0.5
    return Verdict(name, float(2 * stats.t.sf(abs(mean) / deviation * n**0.5, n - 1)))


def binomial_variance(share: float, tests: float) -> float:
    """Return the variance of a share of independent tests; one passed and one failed are added, so that it is not 0.

    Example:
        >>> round(binomial_variance(0.0, 64), 6)
        0.000226
    """
    known = (share * tests + 1) / (tests + 2)
    return known * (1 - known) / (tests + 2)


def vary(values: Sequence[float]) -> bool:
    """Return whether values differ by more than they are rounded.

    Example:
        >>> vary([0.3 - 0.1, 0.4 - 0.2]), vary([0.2, 0.21])
        (False, True)
    """
    return bool(np.ptp(values) > ROUNDED * np.abs(values).max())
