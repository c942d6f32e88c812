"""Statistics of results: means over seeds with limits, differences of seeds, and tests of them.

A number of a condition is the mean over its n seeds, with limits of the t distribution, s their standard deviation:

    mean +- t_(n-1, 0.975) s / sqrt(n)

One seed has no limits, nor have seeds whose numbers are all the same. Shares get two more numbers, the ends of their
range (Agresti, Coull 1998 do so for counts). Seeds of which some have acquired retrieval and some have not are alike by
chance: without the two, t limits of five seeds that happen to agree contain the mean in 70 to 80% of cases, and with
them in 90% and more (tests/eval/test_coverage.py). Fewer than FEWEST seeds are described, and not tested.

Of two results of the same tests, b are passed by the first alone and c by the second. If both pass equally often,

    p = min(1, 2 P(X <= min(b, c))),   X ~ Binomial(b + c, 1/2)

Holm's adjusted values of m comparisons, p rising, are a_k = max over j <= k of min(1, (m - j + 1) p_j).

The variance of a share of n tests in one seed is that of its tests at least, with one passed and one failed more:
q (1 - q) / (n + 2). Without it, seeds that agree by chance, as 0 of 64 tests in each of five, would differ surely.

Source: Student 1908; Welch 1947; Cohen 1988 for the seeds needed; Fisher 1935 for two tables; Agresti and Caffo 2000
for the two tests more; McNemar 1947, in its exact form; Holm 1979.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lab.core.types import CONFIDENCE, FloatArray, Row

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05
FEWEST = 4  # seeds, or bases, that a test takes
POWER, MOST_SEEDS = 0.8, 200
SHARES = (0.0, 1.0)
MCNEMAR, FISHER = "exact McNemar on the same tests", "Fisher's exact test"
SEEDS_PAIRED, SEEDS = "paired t over the same seeds", "Welch's t over seeds"


class Verdict(NamedTuple):
    """The name of a test, its p, the difference in standard deviations, and the degrees of freedom of these."""

    test: str | None = None
    p: float = np.nan
    effect: float = np.nan
    degrees: float = np.nan


NONE = Verdict()


def mean_with_limits(
    values: Sequence[float], confidence: float = CONFIDENCE, ends: tuple[float, float] | None = None
) -> tuple[float, float, float]:
    """Return the mean over seeds and its limits, nan if there are none; those of bounded values know their `ends`.

    Example:
        >>> [round(x, 3) for x in mean_with_limits([1.0, 2.0, 3.0])], mean_with_limits([2.0])
        ([2.0, -0.484, 4.484], (2.0, nan, nan))
        >>> [round(x, 3) for x in mean_with_limits([1.0] * 5, ends=SHARES)]
        [1.0, 0.508, 1.0]
    """
    from scipy import stats

    mean = statistics.fmean(values)
    # The two numbers that shares get, as the head of this file says: they widen the limits and leave the mean.
    sample = [*values, *(ends or ())]
    if len(values) < 2 or len(set(sample)) == 1:
        return mean, math.nan, math.nan
    limits = stats.t.interval(confidence, len(sample) - 1, loc=statistics.fmean(sample), scale=stats.sem(sample))
    low, high = np.clip(limits, *(ends or (-math.inf, math.inf))).tolist()
    return mean, low, high


def compare_shares(passed: tuple[float, float], tests: tuple[int, int]) -> Verdict:
    """Test the difference of two shares of tests by Fisher's exact test."""
    from scipy.stats import fisher_exact

    table = [[k, n - k] for k, n in zip(passed, tests, strict=True)]
    return Verdict(FISHER, float(fisher_exact(table).pvalue))


def compare_over_seeds(first: Mapping[str, float], second: Mapping[str, float], floor: float = 0.0) -> Verdict:
    """Test two means over seeds by the paired t test, or by Welch's if the seeds differ; FEWEST seeds are needed.

    `floor` is the least variance of a number of one seed.
    """
    from scipy import stats

    if min(len(first), len(second)) < FEWEST:
        return NONE
    # The same seeds share their data and first weights, so that their differences vary less than the means.
    if set(first) == set(second):
        return paired_t([second[seed] - first[seed] for seed in first], SEEDS_PAIRED, 2 * floor)
    arms = [np.array([*values.values()]) for values in (first, second)]
    if not floor and not any(vary(values) for values in arms):
        return NONE
    (mean, other), (spread, width) = zip(*[(x.mean(), max(x.var(ddof=1), floor) ** 0.5) for x in arms], strict=True)
    welch = stats.ttest_ind_from_stats(mean, spread, len(first), other, width, len(second), equal_var=False)
    deviation = math.sqrt((spread**2 + width**2) / 2)
    return Verdict(SEEDS, float(welch.pvalue), (other - mean) / deviation, len(first) + len(second) - 2)


def paired_t(differences: Sequence[float], name: str, floor: float = 0.0) -> Verdict:
    """Test a mean difference of zero by t, with a least variance of one difference.

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
    deviation = max(float(np.var(differences, ddof=1)), floor) ** 0.5
    effect = float(np.mean(differences)) / deviation
    return Verdict(name, float(2 * stats.t.sf(abs(effect) * n**0.5, n - 1)), effect, n - 1)


def count_seeds(effect: float, *, paired: bool) -> float:
    """Return the fewest seeds at which the t test, paired or of two arms of equal size, shows an effect with POWER.

    The effect is a difference in standard deviations; inf beyond MOST_SEEDS. With n seeds, t has a noncentral t
    distribution of shift effect sqrt(n), or of two arms effect sqrt(n / 2).

    Example:
        >>> count_seeds(1.0, paired=True), count_seeds(-0.5, paired=False), count_seeds(0.0, paired=True)
        (10, 64, inf)
    """
    from scipy import stats

    for n in range(2, MOST_SEEDS + 1):
        degrees, shift = (n - 1, n**0.5) if paired else (2 * n - 2, (n / 2) ** 0.5)
        if stats.nct.sf(stats.t.isf(LEVEL / 2, degrees), degrees, abs(effect) * shift) >= POWER:
            return n
    return math.inf


def bound_seeds(verdict: Verdict) -> tuple[float, float, float]:
    """Return the seeds that a test needs for the difference seen, and limits as far as the deviation has some.

    A deviation s of k degrees of freedom is that of a distribution between s sqrt(k / c) at both ends c of chi-squared.
    """
    from scipy import stats

    ends = stats.chi2.interval(CONFIDENCE, verdict.degrees)
    few, many = (verdict.effect * math.sqrt(end / verdict.degrees) for end in reversed(ends))
    is_paired = verdict.test == SEEDS_PAIRED
    needed, low, high = (count_seeds(effect, paired=is_paired) for effect in (verdict.effect, few, many))
    return needed, low, high


def binomial_variance(share: float, tests: float) -> float:
    """Return the variance of a share of independent tests; one passed and one failed are added, so that it is not 0.

    Example:
        >>> round(binomial_variance(0.0, 64), 6)
        0.000226
    """
    known = (share * tests + 1) / (tests + 2)
    return known * (1 - known) / (tests + 2)


def vary(values: Sequence[float] | FloatArray) -> bool:
    """Return whether values differ by more than they are rounded.

    Example:
        >>> vary([0.3 - 0.1, 0.4 - 0.2]), vary([0.2, 0.21])
        (False, True)
    """
    # Equal values differ in their last bits after rounding.
    return bool(np.ptp(values) > 1e-9 * np.abs(values).max())


def pair(first: Sequence[float], second: Sequence[float]) -> Row:
    """Compare the outcomes of the same tests in the same order, 1 passed and 0 failed, by McNemar's exact test.

    Example:
        >>> pair([True, True, False, False, False, False], [False, True, True, True, True, True])["p"]
        0.375
    """
    from scipy.stats import binomtest

    both = list(zip(first, second, strict=True))
    b = both.count((1, 0))
    c = both.count((0, 1))
    p = float(binomtest(b, b + c).pvalue) if b + c else 1.0
    n = len(both)
    return {"tests": n, "only_first": b, "only_second": c, "difference": (c - b) / n, "p": p, "test": MCNEMAR}


def holm(p: pd.Series[float]) -> pd.Series[float]:
    """Adjust the p of several comparisons; nan stays nan.

    Example:
        >>> import pandas as pd
        >>> holm(pd.Series({"a": 0.25, "b": 0.125, "c": 1.0, "d": np.nan})).tolist()
        [0.5, 0.375, 1.0, nan]
    """
    # A comparison without a test does not count among the m.
    rising = p.dropna().sort_values()
    return (rising * np.arange(len(rising), 0, -1)).clip(upper=1).cummax().reindex(p.index)
