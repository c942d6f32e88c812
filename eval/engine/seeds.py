"""Tests of means over seeds, and how many seeds a difference needs.

The seeds that a difference needs are the least number at which its t test at LEVEL finds it with the probability
POWER, if its size and spread are those measured. With t(m, c) the noncentral t distribution of m degrees of freedom,
and d the size in standard deviations of the differences of n pairs, or of the seeds of two arms of n each,

    P(t(n - 1, d sqrt(n)) > t_(n-1, 0.975)) >= POWER,     P(t(2n - 2, d sqrt(n / 2)) > t_(2n-2, 0.975)) >= POWER

Seeds of one arm may agree by chance, as 0 of 64 tests in each of five. The variance of a share of n tests in one seed
is therefore that of its tests at least, with one passed and one failed more: q (1 - q) / (n + 2).

Source: Student 1908; Welch 1947; Fisher 1935 for flips of signs; Agresti and Caffo 2000 for the two tests more.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lab.runs.arms import FEWEST

SEEDS_PAIRED, SEEDS = "paired t over the same seeds", "Welch's t over seeds"
LEVEL = 0.05
POWER, MOST_SEEDS = 0.9, 1000  # more seeds are not counted
FLIPS = 2**12  # and more are sampled, for the exact p
LARGEST = 20.0  # standard deviations, of a difference that two seeds show
ROUNDED = 1e-9  # share of the largest value by which values differ that are the same but for rounding


class Verdict(NamedTuple):
    """The name of a test and its p; of a difference of means over seeds the seeds that it needs, and the exact p.

    The exact p is that of all flips of signs, or of all ways to divide the seeds: with n pairs 2 / 2^n at least.
    """

    test: str | None = None
    p: float = np.nan
    seeds_needed: int | None = None
    p_exact: float = np.nan


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
    if not np.isfinite(p):
        return NONE
    # Up to FLIPS divisions are enumerated, which gives the exact p; more are sampled.
    flips = stats.permutation_test(arms, mean_difference, n_resamples=FLIPS)
    seeds = seeds_needed(means[1] - means[0], float(np.mean(variances)) ** 0.5, paired=False)
    return Verdict(SEEDS, p, seeds, float(flips.pvalue))


def mean_difference(first: Any, second: Any, axis: int) -> Any:
    return np.mean(first, axis=axis) - np.mean(second, axis=axis)


def paired_t(differences: Sequence[float], name: str, floor: float = 0.0) -> Verdict:
    """Test a mean difference of zero, by t with a least variance of one difference, and exactly by flips of signs.

    There is no test if all differences are equal, but not 0, without a floor.

    Example:
        >>> paired_t([0.0, 0.0], "t").p, paired_t([1.0], "t") == NONE, paired_t([0.5, 0.5], "t") == NONE
        (1.0, True, True)
        >>> paired_t([1.0] * 5, "t", floor=0.0004).p < 1e-6, paired_t([1.0] * 5, "t", floor=0.0004).p_exact
        (True, 0.0625)
    """
    from scipy import stats

    n = len(differences)
    if not any(differences):
        return Verdict(name, 1.0, p_exact=1.0)
    if n < 2 or not (floor or vary(differences)):
        return NONE
    mean = float(np.mean(differences))
    deviation = max(float(np.var(differences, ddof=1)), floor) ** 0.5
    flips = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=FLIPS)
    p = float(2 * stats.t.sf(abs(mean) / deviation * n**0.5, n - 1))
    return Verdict(name, p, seeds_needed(mean, deviation, paired=True), float(flips.pvalue))


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


def seeds_needed(difference: float, deviation: float, *, paired: bool) -> int | None:
    """Count the seeds of each arm that a difference needs; None without a difference, and beyond MOST_SEEDS.

    Example:
        >>> seeds_needed(-0.37, 0.31, paired=True), seeds_needed(0.5, 1.0, paired=False)
        (10, 86)
    """
    from scipy import stats

    if not difference or not deviation:
        return None
    # Beyond LARGEST standard deviations two seeds suffice in any case.
    size = min(abs(difference) / deviation, LARGEST)
    samples = 1 if paired else 2
    # The normal approximation needs fewer seeds than the t test, so that the search may start at its number.
    fewest = samples * ((stats.norm.isf(LEVEL / 2) + stats.norm.isf(1 - POWER)) / size) ** 2
    for n in range(max(2, int(fewest)), MOST_SEEDS + 1):
        freedom = samples * (n - 1)
        if stats.nct.sf(stats.t.isf(LEVEL / 2, freedom), freedom, size * (n / samples) ** 0.5) >= POWER:
            return n
    return None
