"""The share of tests passed, and its exact limits.

At confidence 1 - a, the lower limit is the share p at which outcomes at least as good as the one seen have probability
a/2. The upper limit is the share at which outcomes at most as good have it:

    P_low(X >= x) = a/2,    P_high(X <= x) = a/2

where X of the tests pass, x of them here. The limits hold the true share with probability 1 - a or more.
Source: Clopper and Pearson 1934.
"""

from dataclasses import dataclass, field

from scipy.special import betaincinv  # scipy.stats takes half a second more to import

from lab.core.types import Row


def share_limits(passed: int, tests: int, confidence: float) -> tuple[float, float]:
    """Return the lower and upper limit of the share of tests passed.

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
    cases: list[Row]
    low: float = 0.0
    high: float = 1.0
    seconds: float | None = field(default=None, compare=False)

    @property
    def accuracy(self) -> float:
        return self.passed / self.tests
