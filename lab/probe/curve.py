"""The curve of pass share against length, and where it falls below a threshold, with confidence limits.

The step definition (arXiv:2410.18745, section 3) takes the last length before the first one whose share is below the
threshold. The smooth effective length takes all lengths into account: the shares are fitted
by the non-increasing curve nearest in squares, weighted by tests (pool adjacent violators), which is joined linearly
between lengths; it is the length at which that curve crosses the threshold. Linear, not logarithmic, because the
lengths are equally spaced; the two differ by less than step^2 / (8 length) tokens. Nothing is known below
the first length: a curve that begins below the threshold has no effective length (null in records, beside
`first_length`; `<128` in tables), and a limit of 0 lies below the first length.

Limits. With low_i and high_i the limits of the share at length i, each missed with probability a/2 at most:

    low limit:   as above, of the curve  min over j <= i of low_j     (the first length that may fail ends it)
    high limit:  as above, of the curve  max over j >= i of high_j    (up to the last length that may pass)

The step's low limit is too long only if the first length that truly fails, one length, has its limit low_i at the
threshold or above; its high limit is too short only if the true effective length, one length, has high_i below it. So
the two hold the true value with probability 1 - a, without a correction for many lengths and whatever the curve. The
fit lies between the two curves at every length, so that both effective lengths lie between their limits. The smooth
limits are for the true shares of the lengths measured, joined linearly: how the share falls between two lengths is not
measured. Where the last length may still pass, the high limit is None: the true value may lie beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LengthResult:
    """The tests of one length, or, on a curve over distances, of one distance.

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
        """Share of tests that passed."""
        return self.passed / self.tests


def monotone_shares(results: Sequence[LengthResult]) -> Floats:
    """Fit the shares by a non-increasing curve, weighted by tests; one value for each length."""
    if not results:
        return np.zeros(0)
    shares, weights = [r.accuracy for r in results], [r.tests for r in results]
    fitted: Floats = isotonic_regression(shares, weights=weights, increasing=False).x
    return fitted


def lower_curve(results: Sequence[LengthResult]) -> Floats:
    """Return a non-increasing curve below the true one: the smallest lower limit so far."""
    return np.minimum.accumulate([r.low for r in results] or [0.0])[: len(results)]


def upper_curve(results: Sequence[LengthResult]) -> Floats:
    """Return a non-increasing curve above the true one: the largest upper limit from here on."""
    return np.maximum.accumulate([r.high for r in reversed(results)] or [0.0])[::-1][: len(results)]


def last_passing(lengths: Sequence[int], shares: Sequence[float] | Floats, threshold: float) -> int:
    """Return the last length before the first whose share is below the threshold; 0 if that is the first of all.

    Example:
        >>> last_passing([128, 256, 384, 512], [0.9, 0.8, 0.7, 0.9], threshold=0.8)
        256
    """
    last = 0
    for length, share in zip(lengths, shares, strict=True):
        if share < threshold:
            break
        last = length
    return last


def crossing(lengths: Sequence[int], shares: Sequence[float] | Floats, threshold: float) -> float:
    """Find the length at which a curve, joined linearly, first falls below the threshold.

    The last length where it never does; 0 where it begins below.

    Example:
        >>> crossing([128, 256, 384], [1.0, 0.9, 0.5], threshold=0.8)
        288.0
    """
    last = last_passing(lengths, shares, threshold)
    if last in (0, *lengths[-1:]):
        return float(last)
    k = list(lengths).index(last)
    fall = (shares[k] - threshold) / (shares[k] - shares[k + 1])
    return float(last + fall * (lengths[k + 1] - last))


def effective_lengths(results: Sequence[LengthResult], threshold: float) -> dict[str, float | int | None]:
    """Compute the effective length by steps and the smooth one, with limits.

    None for lengths below the first length tested and for limits beyond the last; 0 for limits below the first.

    Units: tokens, the smooth ones to a tenth.
    """
    lengths = [r.length for r in results]
    low, high = lower_curve(results), upper_curve(results)
    is_open = not results or bool(high[-1] >= threshold)
    return {
        "threshold": threshold,
        "effective_length": last_passing(lengths, [r.accuracy for r in results], threshold) or None,
        "first_length": lengths[0] if lengths else None,
        "low": last_passing(lengths, low, threshold),
        "high": None if is_open else last_passing(lengths, high, threshold),
        "smooth": round(crossing(lengths, monotone_shares(results), threshold), 1) or None,
        "smooth_low": round(crossing(lengths, low, threshold), 1),
        "smooth_high": None if is_open else round(crossing(lengths, high, threshold), 1),
    }


def shown_length(length: float | None, first: int | None, form: str = ",") -> str:
    """Write an effective length or a limit of one; records of earlier versions have 0 where the first length fails.

    Example:
        >>> shown_length(1280, 128), shown_length(290.44, 128, ",.1f"), shown_length(None, 128), shown_length(0, None)
        ('1,280', '290.4', '<128', 'none')
    """
    if length:
        return format(length, form)
    return "none" if first is None else f"<{first:,}"
