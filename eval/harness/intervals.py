"""95% intervals of the harness's numbers, from what the documents scored, and which kind each is.

exact   every document scores 0 or 1: Clopper and Pearson's limits (1934)
t       the number is the mean of what documents score: the t interval of a mean
ratio   documents score a log-likelihood and a weight, the text's words or bytes: the interval of
        eval/common/sliding.py on the mean loss, in the metric's unit, where

            perplexity = exp(sum_d nll_d / sum_d w_d),    bits per byte = log2 of it

stderr  none of these reproduces the number, as F1 over all documents, BLEU, or a group's mean: 1.96 times the
        harness's own standard error to either side, by a formula or from resampled documents
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from eval.common.sliding import TextLosses
from lab.probe.intervals import share_limits

CONFIDENCE = 0.95
BITS = "bits_per_byte"
WEIGHTED = ("word_perplexity", "byte_perplexity", BITS)
AGREE = 1e-9  # relative: the harness adds the same numbers up in another order


class Interval(NamedTuple):
    """Limits and their kind."""

    low: float
    high: float
    kind: str


def interval(metric: str, score: Any, each: Sequence[Any], stderr: Any = None) -> Interval | None:
    """Compute the interval of a number; None where nothing is known of how it varies.

    Example:
        >>> low, high, kind = interval("acc", 0.8, [1.0] * 8 + [0.0] * 2)
        >>> round(low, 4), round(high, 4), kind
        (0.4439, 0.9748, 'exact')
        >>> interval("f1", 0.7, [0.5, 0.6]), interval("f1", 0.7, [0.5, 0.6], 0.1)[2]
        (None, 'stderr')
    """
    if not is_number(score):
        return None
    found = None
    if len(each) > 1:
        found = loss_interval(metric, score, each) if metric in WEIGHTED else mean_interval(score, each)
    if found is None and is_number(stderr):
        return around(score, norm.ppf((1 + CONFIDENCE) / 2) * stderr, "stderr")
    return found


def around(middle: float, half: float, kind: str) -> Interval:
    """Lay limits to either side."""
    return Interval(float(middle - half), float(middle + half), kind)


def is_number(value: Any) -> bool:
    """Check that a metric is a finite number, and not N/A."""
    return isinstance(value, Real) and math.isfinite(value)


def mean_interval(score: float, each: Sequence[Any]) -> Interval | None:
    """Compute the interval of a mean, if the number is one."""
    if not all(is_number(value) for value in each):
        return None
    values = np.array(each, dtype=float)
    if not math.isclose(values.mean(), score, rel_tol=AGREE, abs_tol=AGREE):
        return None
    if set(values.tolist()) <= {0.0, 1.0}:
        low, high = share_limits(int(values.sum()), len(each), CONFIDENCE)
        return Interval(low, high, "exact")
    half = float(student.ppf((1 + CONFIDENCE) / 2, len(each) - 1)) * values.std(ddof=1) / math.sqrt(len(each))
    return around(values.mean(), half, "t")


def loss_interval(metric: str, score: float, each: Sequence[Any]) -> Interval | None:
    """Compute the interval of a perplexity, or of bits per byte."""
    losses = TextLosses(-np.array([nats for nats, _ in each]), np.array([weight for _, weight in each]))
    as_unit = math.log2 if metric == BITS else float
    if losses.limits is None or not math.isclose(as_unit(losses.perplexity), score, rel_tol=AGREE):
        return None
    return Interval(as_unit(losses.limits[0]), as_unit(losses.limits[1]), "ratio")
