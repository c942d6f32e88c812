"""Reach and effective length: the largest distance and length at which accuracy is at least `threshold`.

A stretch of neighbouring distances shows the threshold if its pooled share is at least the threshold, and a share of
threshold - 0.05 would pass this number of tests with a probability of at most 0.02 / (number of distances):

    x / n >= threshold,     P(X >= x) <= 0.02 / k,     X ~ Binomial(n, threshold - 0.05)

Stretches overlap, which makes it 5% of cases without a true reach.

Reach begins at the last distance from which a stretch shows it. From there on the shares are fitted by the
non-increasing curve nearest in squares, weighted by tests (`Curve.fit`). Reach is where that curve crosses the
threshold, on linear joins. Nearer distances that fail are dips: they do not end reach, and their exact upper limit is
below the threshold. Reach is not determined where fewer than half of the tested distances up to it pass. Without such a
stretch it is not determined either, and only the range of the limits is known:

    low:   the last distance from which a stretch shows the threshold with a margin of 0, or where the least lower limit
           from there on crosses the threshold
    high:  where the largest upper limit of a distance and all larger ones crosses it

Errors, by simulation at 64 tests at each of 14 distances and a threshold of .8 (tests/probe/test_reach.py): a true
share of .75 everywhere has a reach in less than 5% of cases, one of .78 in 35%. A single first distance of .5 before
three distances of .9 leaves no reach in less than 5%. Shares of .85 at no more than three distances have none in 35%.

Example:
    >>> shares = {24: 5, 48: 10, 72: 10, 96: 10, 120: 4}  # of 10 tests at each distance
    >>> curve = [LengthResult(d, 10, x, [], *share_limits(x, 10, 0.95)) for d, x in shares.items()]
    >>> values = reach(curve, 0.8)
    >>> values["reach"], values["dips"], values["reach_high"]
    (104.0, [], 114.3)

The effective length by steps (arXiv:2410.18745, section 3) is the last length before the first one whose share is below
the threshold. The smooth one is where the fit of all lengths (pool adjacent violators) crosses it, on linear joins.
Lengths are equally spaced; a logarithmic join differs by less than step^2 / (8 length) tokens. The limits are those of
two curves,

    low:   min over j <= i of low_j  (the first length that may fail ends it)
    high:  max over j >= i of high_j  (up to the last length that may pass)

The low limit is too long only if the first length that truly fails has its limit low_i at the threshold or above. The
high limit is too short only if the true effective length has high_i below it. Each of these is one length, so the two
contain the true value with probability 1 - a for any curve. Nothing is known below the first length and beyond the
last: there a value is None, a low limit 0, and a high limit None.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import betainc

from lab.core.types import FloatArray, Row
from lab.probe.limits import LengthResult, share_limits

ONE = "found_by_distance"  # the metric of one-number tests, which training's rows do not name


class Curve(NamedTuple):
    """The results of several lengths as arrays of one value for each."""

    lengths: list[int]
    tests: FloatArray
    passed: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def shares(self) -> FloatArray:
        return self.passed / self.tests

    @property
    def largest_high(self) -> FloatArray:
        """Find the largest upper limit of each length and all longer ones."""
        return np.maximum.accumulate(self.high[::-1])[::-1]

    def fit(self) -> FloatArray:
        """Fit the shares by a non-increasing curve, weighted by tests."""
        return isotonic_regression(self.shares, weights=self.tests, increasing=False).x


def to_curve(results: Sequence[LengthResult]) -> Curve:
    """Put the results of lengths side by side as arrays."""
    rows = [(result.tests, result.passed, result.low, result.high) for result in results]
    return Curve([result.length for result in results], *np.array(rows, dtype=np.float64).T)


def find_crossing(lengths: Sequence[int], shares: Sequence[float] | FloatArray, threshold: float) -> tuple[int, float]:
    """Find where a curve first falls below a threshold: the last length before, and that length on linear joins.

    Both are 0 where it begins below, and the last length where it never falls.

    Example:
        >>> find_crossing([128, 256, 384, 512], [1.0, 0.9, 0.5, 0.9], threshold=0.8)
        (256, 288.0)
    """
    n = int(np.flatnonzero([*(np.asarray(shares) < threshold), True])[0])
    if n == 0:
        return 0, 0.0
    if n == len(lengths):
        return lengths[-1], float(lengths[-1])
    fall = (shares[n - 1] - threshold) / (shares[n - 1] - shares[n])
    return lengths[n - 1], float(lengths[n - 1] + fall * (lengths[n] - lengths[n - 1]))


def find_first_index(curve: Curve, threshold: float, margin: float = 0.05) -> int | None:
    """Find the last index from which a stretch of distances shows the threshold; None if there is none."""
    least = max(threshold - margin, 0.0)
    # Differences of cumulative sums are the sums of every stretch.
    passed, tests = np.append(0, np.cumsum(curve.passed)), np.append(0, np.cumsum(curve.tests))
    x = passed[None, 1:] - passed[:-1, None]  # of the stretch from row to column
    n = np.maximum(tests[None, 1:] - tests[:-1, None], 1)
    # The upper tail of a binomial, P(X >= x), as an incomplete beta function: it takes arrays, and no scipy.stats.
    p = np.where(x > 0, betainc(np.maximum(x, 1), np.maximum(n - x + 1, 1), least), 1.0)
    is_shown = np.triu((x / n >= threshold) & (p <= 0.02 / len(curve.lengths)))
    rows = np.flatnonzero(is_shown.any(1))  # first distances of stretches
    return int(rows[-1]) if len(rows) else None


def fit_reach(results: Sequence[LengthResult], threshold: float) -> tuple[Sequence[LengthResult], FloatArray]:
    """Return the results from the distance on at which reach begins, or all, with their non-increasing fit."""
    fitted = results[find_first_index(to_curve(results), threshold) or 0 :]
    # Means of equal shares are a few last bits off.
    return fitted, to_curve(fitted).fit().round(12)


def reach(results: Sequence[LengthResult], threshold: float, least_passing: float = 0.5) -> Row:
    """Find the reach of tests by rising distance, with limits and dips; `least_passing` is a share of distances.

    `reach` is None if no stretch shows the threshold, or fewer than half of the distances up to it pass: then
    `best_distance` is the last one of the best share. Reach is the last distance where the fit does not fall below.
    `reach_low` is None below the first distance, `reach_high` is None beyond the last one.

    Units: tokens, to a tenth.
    """
    curve = to_curve(results)
    distances = curve.lengths
    values: Row = {"reach": None, "reach_low": None, "reach_high": None, "best_distance": None}
    if curve.high[-1] < threshold:
        _, high = find_crossing(distances, curve.largest_high, threshold)
        values["reach_high"] = round(high, 1) or distances[0]
    dips = []
    start = find_first_index(curve, threshold)
    if start is not None:
        _, shares = fit_reach(results, threshold)
        _, value = find_crossing(distances[start:], shares, threshold)
        passes = curve.shares[np.array(distances) <= value] >= threshold
        if passes.sum() < least_passing * len(passes):
            values["best_distance"] = distances[np.flatnonzero(curve.shares == curve.shares.max())[-1]]
        else:
            values["reach"] = round(value, 1)
            near = np.array(distances)
            dips = near[(near < value) & (curve.high < threshold)].tolist()
    start = find_first_index(curve, threshold, margin=0.0)
    if start is not None:
        # Some distance of the stretch is at the threshold or above, so that reach is not nearer than its first.
        _, low = find_crossing(distances[start:], np.minimum.accumulate(curve.low[start:]), threshold)
        values["reach_low"] = round(max(low, float(distances[start])), 1)
    return {**values, "first_distance": distances[0], "last_distance": distances[-1], "dips": dips}


def with_reach(rows: Iterable[Row]) -> Iterator[Row]:
    """Replace every reach of an earlier definition by that of the tests before it.

    The first had no `dips`. The second, without `best_distance`, had a number where fewer than half of the distances
    pass.
    """
    tests: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        changed: Row = {}
        known = tests[tuple(row.get(name) for name in ("consumed_tokens", "model", "method"))]
        if "distance" in row and row.get("metric", ONE) == ONE:
            known[row["distance"]] = row
        if "reach" in row and "best_distance" not in row and known:
            values = recompute_reach(known, row.get("threshold", 0.8))
            if "dips" not in row or values["best_distance"] is not None:
                changed = values
        yield {**row, **changed}


def recompute_reach(rows: Mapping[int, Row], threshold: float, least_passing: float = 0.5) -> Row:
    """Find the reach of recorded tests, by distance; f there is between those of the distances around it."""
    results = []
    for distance, row in sorted(rows.items()):
        n, found = row["n"], row["found"]
        results.append(LengthResult(distance, n, found, [], *share_limits(found, n, row.get("confidence", 0.95))))
    f = np.array([rows[distance].get("f") for distance in sorted(rows)], dtype=np.float64)  # nan: not counted
    values = reach(results, threshold, least_passing)
    is_known = values["reach"] is not None and not np.isnan(f).any()
    return {**values, "f_at_reach": round(np.interp(values["reach"], sorted(rows), f)) if is_known else None}


def classify_reach(reach: float | None, first: float | None, last: float | None) -> str | None:
    """Say whether a reach is known to lie `below` the first distance tested, or at the `end` or beyond.

    Example:
        >>> classify_reach(None, 24, 179), classify_reach(179.0, 24, 179), classify_reach(90.5, 24, 179)
        ('below', 'end', None)
    """
    if reach is None or math.isnan(reach):
        return None if first is None or math.isnan(first) else "below"
    return "end" if last is not None and reach >= last else None


def format_reach(row: Row) -> str:
    """Write the reach of a probe, a censored one as a bound.

    Example:
        >>> row = {"first_distance": 24, "last_distance": 179}
        >>> [format_reach({**row, "reach": reach, "reach_high": 24}) for reach in (179.0, math.nan)]
        ['reach 179+', 'reach <24']
        >>> [format_reach({**row, "reach": None, "reach_high": high}) for high in (64, None)]
        ['reach <24 to 64', 'reach <24 to 179+']
    """
    # A number that is missing is None in a record, and nan in a table.
    known = {name: value for name, value in row.items() if isinstance(value, (int, float)) and not math.isnan(value)}
    if "best_distance" in known:
        return f"reach not determined, best at {known['best_distance']:,.0f}"
    reach, high, first = known.get("reach"), known.get("reach_high"), known.get("first_distance")
    end = classify_reach(reach, first, known.get("last_distance"))
    if end == "below":
        # Too few tests can show that the reach is below a higher distance only, or below none that was tested.
        if high is None:
            return f"reach <{first:,.0f} to {known['last_distance']:,.0f}+"
        return f"reach <{first:,.0f}" if high == first else f"reach <{first:,.0f} to {high:,.0f}"
    if reach is None:
        return "reach not measured"
    return f"reach {reach:,.0f}+" if end else f"reach {reach:,.0f}"


def format_limits(row: Row) -> str:
    """Write the limits of a reach.

    Example:
        >>> format_limits({"reach_low": 120.0, "reach_high": None, "first_distance": 24})
        '120.0 to the end'
    """
    high = "the end" if row["reach_high"] is None else f"{row['reach_high']:,.1f}"
    return f"{shown_length(row['reach_low'], row['first_distance'], ',.1f')} to {high}"


def effective_lengths(results: Sequence[LengthResult], threshold: float) -> dict[str, float | int | None]:
    """Compute the effective length by steps and the smooth one, with limits; the module's docstring has the Nones.

    Units: tokens, the smooth ones to a tenth.
    """
    curve = to_curve(results)
    lengths = curve.lengths
    step, _ = find_crossing(lengths, curve.shares, threshold)
    _, smooth = find_crossing(lengths, curve.fit(), threshold)
    low, smooth_low = find_crossing(lengths, np.minimum.accumulate(curve.low), threshold)
    high: int | None = None
    smooth_high: float | None = None
    # Without a limit below the threshold, the true value may lie beyond the last length.
    if curve.high[-1] < threshold:
        high, smooth_high = find_crossing(lengths, curve.largest_high, threshold)
        smooth_high = round(smooth_high, 1)
    return {
        "threshold": threshold,
        "effective_length": step or None,
        "first_length": lengths[0],
        "last_length": lengths[-1],
        "low": low,
        "high": high,
        "smooth": round(smooth, 1) or None,
        "smooth_low": round(smooth_low, 1),
        "smooth_high": smooth_high,
    }


def shown_length(length: float | None, first: int | None, form: str = ",") -> str:
    """Write an effective length or a limit of one.

    Example:
        >>> shown_length(1280, 128), shown_length(290.44, 128, ",.1f"), shown_length(None, 128), shown_length(0, None)
        ('1,280', '290.4', '<128', 'none')
    """
    if length:
        return format(length, form)
    return "none" if first is None else f"<{first:,}"
