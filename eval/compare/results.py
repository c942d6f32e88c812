"""Whether results of one line differ, and by which test that is said.

The first column is what the others are compared to. For two results of a line, in this order:

0. A sequential probe stopped a length as soon as its verdict was known, so that the number of tests depends on what
   came of them, which the tests below do not allow for. The exact limits of lab/probe/intervals.py do:

       p = min { a : the limits at confidence 1 - a/2 of the one lie apart from those of the other }

   Both hold their true shares with probability 1 - a or more, whatever the tests have in common, so p is conservative.
1. Every test's outcome is recorded on both sides, of the same tests with the same prompts: McNemar's exact test where
   outcomes are 0 or 1 (eval/common/statistics.py), else the paired t test on the k differences d_i, the losses per
   token of the documents where the score is a perplexity:

       t = mean(d) / (s(d) / sqrt(k)),    p = 2 P(T_(k-1) >= |t|)

2. Else, both scores are shares of tests passed, a of m and b of n: Fisher's exact test, the probability of all tables
   with the same margins that are no more likely than the one seen,

       P(a) = C(m, a) C(n, b) / C(m + n, a + b)

3. Else none, and the table says so.

p is adjusted by Holm's method for all comparisons of the table together. Source: Fisher 1935; Student 1908; Holm 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.stats import fisher_exact
from scipy.stats import t as student

from eval.common.statistics import holm, pair
from eval.compare.records import Outcomes, Record, outcomes
from lab.probe.intervals import exact_limits, share_limits
from lab.probe.sequential import sequential_design

LEVEL = 0.05
LEAST = -12.0  # the smallest p that is told apart, as a power of ten
MCNEMAR, PAIRED_T, FISHER = "exact McNemar on the same tests", "paired t on the same tests", "Fisher's exact test"
LIMITS = "exact limits that lie apart, as tests stopped early"


@dataclass(frozen=True)
class Verdict:
    """What a test says of the difference of two results; `p` is adjusted, and None where there is no test."""

    test: str | None
    raw_p: float | None = None
    p: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the difference is one at LEVEL."""
        return self.p is not None and self.p <= LEVEL


def compare(first: Record, second: Record) -> Verdict:
    """Test the difference of two results of one line."""
    if first.row.get("stops") or second.row.get("stops"):
        return Verdict(LIMITS, apart(first, second))
    known = outcomes(first), outcomes(second)
    if known[0] is not None and known[1] is not None and set(known[0]) == set(known[1]):
        found = paired(known[0], known[1])
        if found is not None:
            return found
    if first.passed is not None and second.passed is not None:
        table = [[r.passed, r.n - r.passed] for r in (first, second) if r.passed is not None]
        return Verdict(FISHER, float(fisher_exact(table).pvalue))
    return Verdict(None)


def apart(first: Record, second: Record) -> float:
    """Find the smallest a at which the limits of two shares, each at confidence 1 - a/2, lie apart; 1 where none is.

    Example:
        >>> from types import SimpleNamespace as Share
        >>> all_tests = [Share(row={}, n=20, passed=passed) for passed in (2, 18)]
        >>> f"{apart(*all_tests):.1e}"
        '8.0e-04'
    """
    low, high = (limits_of(record) for record in sorted((first, second), key=lambda r: (r.passed or 0) / r.n))

    def gap(log_a: float) -> float:
        confidence = 1 - 10**log_a / 2
        return high(confidence)[0] - low(confidence)[1]

    if gap(0.0) <= 0:
        return 1.0
    if gap(LEAST) > 0:
        return float(10**LEAST)
    return float(10 ** brentq(gap, LEAST, 0.0, xtol=1e-6))


def limits_of(record: Record) -> Callable[[float], tuple[float, float]]:
    """Make what gives a share's exact limits at a confidence, under the rule that its tests were stopped by."""
    assert record.passed is not None, "shares count what passed"
    stops = record.row.get("stops")
    if not stops:
        return partial(share_limits, record.passed, record.n)
    design = sequential_design(stops["tests"], tuple(stops["thresholds"]), stops["error"], stops["round"])
    return partial(exact_limits, design, record.n, record.passed)


def paired(first: Outcomes, second: Outcomes) -> Verdict | None:
    """Test outcomes of the same tests; None where the t test has no answer.

    Example:
        >>> outcomes = {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}
        >>> paired(outcomes, {test: 1.0 for test in outcomes}).raw_p
        0.125
    """
    keys = sorted(first, key=str)
    values = np.array([[first[key], second[key]] for key in keys])
    if set(values.ravel().tolist()) <= {0.0, 1.0}:
        each = values.astype(bool).tolist()
        return Verdict(MCNEMAR, pair([a for a, _ in each], [b for _, b in each]).p)
    p = paired_t(values[:, 1] - values[:, 0])
    return None if p is None else Verdict(PAIRED_T, p)


def paired_t(differences: Sequence[float] | np.ndarray) -> float | None:
    """Return the p of a mean difference of zero; None for one test, or where all differ alike.

    Example:
        >>> round(paired_t([1.0, 2.0, 3.0]), 4), paired_t([0.0, 0.0]), paired_t([1.0])
        (0.0742, 1.0, None)
    """
    d = np.asarray(differences, dtype=float)
    if not d.any():
        return 1.0
    if len(d) < 2 or d.std(ddof=1) == 0:
        return None
    statistic = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    return float(2 * student.sf(abs(statistic), len(d) - 1))


def adjust(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Adjust the p of all comparisons of a table."""
    adjusted = holm({name: verdict.raw_p for name, verdict in verdicts.items() if verdict.raw_p is not None})
    return {name: Verdict(v.test, v.raw_p, adjusted.get(name)) for name, v in verdicts.items()}
