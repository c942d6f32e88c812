"""Shares of tests passed: exact limits, and early stopping.

**Early stopping.** A length stops once the verdict of all its tests is certain, or almost certain. Of n tests at least
k must pass, the smallest k with k / n >= threshold. After t tests, x of them passed, a uniform prior over the share p
predicts the verdict of all n by the recursion

    F(n, x) = [x >= k],    F(t, x) = ((x + 1) F(t + 1, x + 1) + (t - x + 1) F(t + 1, x)) / (t + 2)

A length stops once, at the end of a round, the less likely verdict has a probability of at most `doubt` for every
threshold. The prior only shapes the rule. The guarantee is valid for every share p: with N(t, x), the number of orders
that reach (t, x) without an earlier stop,

    D(p) = sum over stopping points (t, x) of  N(t, x) p^x (1 - p)^(t - x) P_p(all n have the other verdict | t, x)

is exactly how often it decides differently from all n tests of the same model. `doubt` is the largest value that keeps
D at or below `error`. With error 0 this is curtailed sampling: a stop only where the rest cannot matter.
Source: Herson 1979 for predictive stopping; Lan, Simon, Halperin 1982 for stopping against the full sample's verdict.

**Limits of a share.** At confidence 1 - a, the lower limit is the share p at which outcomes at least as good as the one
seen have probability a/2. The upper limit is the share at which outcomes at most as good have it:

    P_low(X / T >= x / t) = a/2,    P_high(X / T <= x / t) = a/2

where T tests are run and X pass. With T fixed these are the limits of Clopper and Pearson (1934). Where tests may stop
early, T is random. The two probabilities are then sums over the stopping points, ordered by the share passed (Jennison,
Turnbull 1983). Either way the limits hold the true share with probability 1 - a or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv  # scipy.stats takes half a second more to import

from lab.core.types import FloatArray, IntArray

GRID = 16  # shares p at which D is computed, times sqrt(n): an eighth of the standard deviation apart at any p
MARGIN = 0.99  # of the error, as D between two grid points is up to 0.2% larger
EDGE = 1e-12  # the search of limits excludes shares closer to 0 or 1

Bools = np.typing.NDArray[np.bool_]


@dataclass(frozen=True)
class Design:
    """Where the tests of one length stop: at a look (t, x) whose entry in `stops` is true, and always after the last.

    Units: `looks` are numbers of tests, rising.
    Shapes: `stops` has one bool (t + 1,) for each look t, indexed by the number of tests passed.
    """

    thresholds: tuple[float, ...]
    looks: tuple[int, ...]
    stops: tuple[Bools, ...]

    def is_over(self, tests: int, passed: int) -> bool:
        return bool(self.stops[self.looks.index(tests)][passed])

    @cached_property
    def points(self) -> tuple[IntArray, IntArray, FloatArray]:
        """List the stopping points that can be reached: tests t, passed x, and log N(t, x)."""
        counts, passes, logs = [], [], []
        orders = np.zeros(1)
        for tests in range(1, self.looks[-1] + 1):
            # Logarithms, as the number of orders exceeds float64 from about 1,030 tests on.
            one_more = np.pad(orders, (1, 0), constant_values=-np.inf)
            orders = np.logaddexp(one_more, np.pad(orders, (0, 1), constant_values=-np.inf))
            if tests in self.looks:
                stops = self.stops[self.looks.index(tests)]
                passed = np.flatnonzero(stops & np.isfinite(orders))
                counts.append(np.full(len(passed), tests))
                passes.append(passed)
                logs.append(orders[passed])
                # No order continues after a stop, so that later points count only orders without an earlier one.
                orders[stops] = -np.inf
        return np.concatenate(counts), np.concatenate(passes), np.concatenate(logs)

    def stopping_probabilities(self, shares: FloatArray) -> FloatArray:
        """Compute the probability of each stopping point at each true share, (shares, points)."""
        counts, passed, log_orders = self.points
        p = np.asarray(shares, dtype=np.float64)[:, None]
        return np.exp(log_orders + passed * np.log(p) + (counts - passed) * np.log1p(-p))

    def disagreement(self, shares: FloatArray) -> FloatArray:
        """Compute D(p), how often the verdict is not that of all tests, (thresholds, shares)."""
        # Imported here, because it takes half a second and only early stopping needs it.
        from scipy.stats import binom

        counts, passed, _ = self.points
        reached = self.stopping_probabilities(shares)
        rows = []
        for threshold in self.thresholds:
            needed = fewest(self.looks[-1], threshold) - passed
            full = binom.sf(needed - 1, self.looks[-1] - counts, np.asarray(shares)[:, None])
            other = np.where(passed / counts >= threshold, 1.0 - full, full)
            rows.append((reached * other).sum(1))
        return np.stack(rows)


@cache
def sequential_design(tests: int, thresholds: tuple[float, ...], error: float, round_size: int) -> Design:
    """Find the design that stops earliest and differs from all tests with probability `error` at most, at every share.

    With one round of all tests there is one look, after the last.
    """
    looks = (*range(round_size, tests, round_size), tests)
    doubts = doubts_at(tests, thresholds, looks)

    def stop_below(level: float) -> Design:
        return Design(thresholds, looks, tuple(doubt <= level for doubt in doubts))

    # Sines put grid points at equal distances in standard deviations of a share, which vanish at 0 and 1.
    shares = np.sin(np.linspace(0, np.pi / 2, int(GRID * tests**0.5) + 2)[1:-1]) ** 2
    levels = np.unique(np.append(0.0, np.concatenate(doubts)))
    levels = levels[levels < 0.5]
    # A higher level stops earlier and differs more often, so that bisection finds the largest level that is allowed.
    # Level 0 always is: there only a certain verdict stops.
    low, high = 0, len(levels)
    while high - low > 1:
        middle = (low + high) // 2
        if stop_below(levels[middle]).disagreement(shares).max() <= MARGIN * error:
            low = middle
        else:
            high = middle
    return stop_below(levels[low])


def doubts_at(tests: int, thresholds: Sequence[float], looks: Sequence[int]) -> list[FloatArray]:
    """Compute, for each look, the predicted probability of the less likely verdict by tests passed.

    The largest of all thresholds counts, and 1 where the share so far is not on the likely side. No doubt is left
    after all tests.
    """
    out = {look: np.zeros(look + 1) for look in looks}
    for threshold in thresholds:
        passes = (np.arange(tests + 1) >= fewest(tests, threshold)).astype(np.float64)  # F(t, .)
        for t in range(tests - 1, 0, -1):
            x = np.arange(t + 1)
            passes = ((x + 1) * passes[1:] + (t - x + 1) * passes[:-1]) / (t + 2)
            if t in out:
                # Before the share so far agrees with the likely verdict, a stop would report the other one.
                astray = (x / t >= threshold) != (passes > 0.5)
                out[t] = np.maximum(out[t], np.where(astray, 1.0, np.minimum(passes, 1 - passes)))
    return list(out.values())


def fewest(tests: int, threshold: float) -> int:
    """Count the tests that must pass for a length to pass.

    Example:
        >>> fewest(500, 0.8), fewest(10, 0.75), fewest(10, 0.0)
        (400, 8, 0)
    """
    return int(np.argmax(np.arange(tests + 1) / tests >= threshold))


def exact_limits(design: Design, tests: int, passed: int, confidence: float) -> tuple[float, float]:
    """Compute the limits of the share after a length has stopped with `passed` of `tests`."""
    if len(design.looks) == 1:
        return share_limits(passed, tests, confidence)
    counts, passes, _ = design.points
    tail = (1 - confidence) / 2

    def share_at(outcomes: Bools) -> float:
        excess = lambda p: float(design.stopping_probabilities(np.array([p]))[0, outcomes].sum() - tail)  # noqa: E731
        return float(brentq(excess, EDGE, 1 - EDGE, xtol=EDGE))

    # Outcomes are ordered by their share passed, compared as products because fractions of integers round. The tail
    # of all outcomes has no root: its limit is 0 or 1.
    low, high = 0.0, 1.0
    if passed:
        low = share_at(passes * tests >= passed * counts)
    if passed < tests:
        high = share_at(passes * tests <= passed * counts)
    return low, high


def share_limits(passed: int, tests: int, confidence: float) -> tuple[float, float]:
    """Return the lower and upper limit of the share where all tests were run, those of Clopper and Pearson.

    Example:
        >>> [round(limit, 4) for limit in share_limits(passed=8, tests=10, confidence=0.95)]
        [0.4439, 0.9748]
    """
    tail = (1 - confidence) / 2
    low, high = 0.0, 1.0
    if passed:
        low = float(betaincinv(passed, tests - passed + 1, tail))
    if passed < tests:
        high = float(betaincinv(passed + 1, tests - passed, 1 - tail))
    return low, high


@dataclass(frozen=True)
class LengthResult:
    """The tests of one length, or of one distance.

    `cases` has every test's numbers, depths and answer, `low` and `high` are limits of the true share passed, and
    `seconds` the time of all tests, extrapolated from those run now; None if none was run.
    """

    length: int
    tests: int
    passed: int
    cases: list[dict[str, Any]]
    low: float = 0.0
    high: float = 1.0
    seconds: float | None = field(default=None, compare=False)

    @property
    def accuracy(self) -> float:
        return self.passed / self.tests
