"""Exact confidence limits for the share of tests that a model passes at one length.

At confidence 1 - a the lower limit is the share p at which outcomes at least as good as the one seen have probability
a/2, the upper limit that at which outcomes at most as good have:

    P_low(X / T >= x / t) = a/2,    P_high(X / T <= x / t) = a/2

where T tests are run and X pass. With T fixed these are the limits of Clopper and Pearson (1934). Where tests may stop
early, T is random, and the two probabilities are sums over the stopping points of the design, ordered by the share
passed (Jennison, Turnbull 1983). Either way the limits hold the true share with probability 1 - a or more, and the
share seen lies between them.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv  # scipy.stats takes half a second more to import

from lab.probe.sequential import Bools, Design

EDGE = 1e-12  # the search of limits excludes shares closer to 0 or 1


def exact_limits(design: Design, tests: int, passed: int, confidence: float) -> tuple[float, float]:
    """Compute the limits of the share after a length has stopped with `passed` of `tests`.

    Example:
        >>> from lab.probe.sequential import full_design
        >>> low, high = exact_limits(full_design(10, [0.8]), tests=10, passed=8, confidence=0.95)
        >>> round(low, 4), round(high, 4)
        (0.4439, 0.9748)
    """
    counts, passes, _ = design.points
    at_least, at_most = passes * tests >= passed * counts, passes * tests <= passed * counts
    tail = (1 - confidence) / 2
    low = 0.0 if passed == 0 else share_at(design, at_least, tail)
    high = 1.0 if passed == tests else share_at(design, at_most, tail)
    return low, high


def share_limits(passed: int, tests: int, confidence: float) -> tuple[float, float]:
    """Return the lower and upper limit of the share where all tests were run, those of Clopper and Pearson.

    Example:
        >>> [round(limit, 4) for limit in share_limits(passed=8, tests=10, confidence=0.95)]
        [0.4439, 0.9748]
    """
    tail = (1 - confidence) / 2
    low = float(betaincinv(passed, tests - passed + 1, tail)) if passed else 0.0
    return low, float(betaincinv(passed + 1, tests - passed, 1 - tail)) if passed < tests else 1.0


def share_at(design: Design, outcomes: Bools, probability: float) -> float:
    """Solve for the share at which a set of outcomes has the given probability."""

    def excess(share: float) -> float:
        return float(design.stopping_probabilities(np.array([share]))[0, outcomes].sum() - probability)

    return float(brentq(excess, EDGE, 1 - EDGE, xtol=EDGE))
