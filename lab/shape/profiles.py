"""Profiles: the distribution of the distances between pairs of tokens, by bins.

    p(b) = sum over distances i in bin b of f(i)  /  sum over all i >= 1 of f(i)

f(0) is left out: it is the number of tokens. The natural profile is that of a corpus's documents cut every T tokens.
The distance between two profiles is their total variation: the share of the pairs that would have to move,

    TV(p, q) = 1/2 sum over bins of |p(b) - q(b)|

Targets, f the natural position frequency (arXiv:2410.18745, Eq. 2), i = 1 .. T - 1:

    flat    1
    power   f(i)^exponent
    exact   f(i) with EXACT's weights

Strategy weights takes the supervised f for f: its targets are counted in place of its tokens.

EXACT puts targets into buckets by the logarithm of their visible context, [2^b, 2^(b+1)). Long are the buckets that
begin at LONG_FRAC T or beyond; with q_b the share of the long targets in bucket b, a target in it weighs

    w_b = 1 + EXTRA r_b / sum over long a of q_a r_a,     r_b = q_b^-exponent

and all others 1, so that the mean extra weight of the long targets is EXTRA. With 4 targets of context 4 .. 7 and 1
of context 8 .. 15, both long, q is 4/5 and 1/5, r at exponent 1/2 is twice as much for the second as for the first, and
so is the extra weight: 5/6 and 5/3 of EXTRA.

Source: arXiv:2605.10544, by summaries of its rule and defaults. It counts the target's place in its document, c + 1,
and adds a constant to q that keeps empty buckets finite; here they are left out. With c, a window of a power of two
tokens ends with its last bucket.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.errors import ConfigError
from lab.shape.config import Exact, Flat, ShapeConfig

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BINS = 64
EXTRA, LONG_FRAC = 0.15, 0.25  # EXACT's own


def bin_edges(window: int) -> IntArray:
    """Cut the distances 1 .. window - 1 into at most BINS bins: edge b is the first distance of bin b.

    Example:
        >>> bin_edges(5).tolist()
        [1, 2, 3, 4, 5]
    """
    edges: IntArray = np.unique(np.linspace(1, window, min(BINS, window - 1) + 1).round().astype(np.int64))
    return edges


def length_frequency(counts: IntArray | FloatArray) -> FloatArray:
    """Compute f of segments by length: f(i) = sum over n of counts(n) max(n - i, 0).

    Shapes: counts (L + 1,), how many segments have n tokens -> float64 (L,).
    Example:
        >>> length_frequency(np.array([0, 1, 0, 2])).tolist()
        [7.0, 4.0, 2.0]
    """
    return sum_to_the_end(sum_to_the_end(counts)[1:])  # the inner sum counts the segments of more than i tokens


def sum_to_the_end(values: IntArray | FloatArray) -> FloatArray:
    """Sum the values from each place to the end."""
    sums: FloatArray = np.cumsum(values[::-1], dtype=np.float64)[::-1]
    return sums


def profile_of(frequency: FloatArray, edges: IntArray) -> FloatArray:
    """Return the share of the pairs in each bin.

    Shapes: f (window,), (bins + 1,) -> (bins,).
    """
    pairs: FloatArray = np.add.reduceat(frequency, edges[:-1])
    shares: FloatArray = pairs / pairs.sum()
    return shares


def total_variation(p: FloatArray, q: FloatArray) -> float:
    """Compute the total variation between two profiles.

    Example:
        >>> total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
        0.25
    """
    return float(np.abs(p - q).sum() / 2)


def target_frequency(config: ShapeConfig, natural: FloatArray) -> FloatArray:
    """Compute the f of a target, up to a factor.

    Shapes: natural f (window,) -> (window,).
    """
    target = config.target
    if isinstance(target, Flat):
        return np.ones(len(natural))
    if isinstance(target, Exact):
        targets = natural - np.append(natural[1:], 0.0)
        return sum_to_the_end(targets * exact_weights(target.exponent, targets))
    power: FloatArray = (natural / natural[0]) ** target.exponent
    return power


def exact_weights(exponent: float, targets: FloatArray) -> FloatArray:
    """Compute EXACT's weight of a target by its visible context.

    Shapes: targets by visible context (window,) -> (window,).
    Raises: ConfigError where no target is long.
    Example:
        >>> targets = np.array([9.0, 0, 0, 0] + [1.0] * 4 + [0.125] * 8)
        >>> exact_weights(0.5, targets)[[3, 4, 8]].round(6).tolist()
        [1.0, 1.125, 1.25]
    """
    bucket = np.frexp(np.arange(len(targets)))[1]  # 0; 1; 2 for 2 and 3; 3 for 4 .. 7
    long = np.ldexp(1.0, bucket - 1) >= LONG_FRAC * len(targets)
    in_bucket = np.bincount(bucket, targets * long)
    if not in_bucket.any():
        raise ConfigError(
            f"shape.target.method=exact: no target sees {LONG_FRAC:g} of the window, rounded up to a power of two; "
            "use longer documents or a shorter window"
        )
    q = in_bucket / in_bucket.sum()
    r = np.power(q, -exponent, where=q > 0, out=np.zeros_like(q))
    weights: FloatArray = 1 + EXTRA * (r / (q @ r))[bucket] * long
    return weights
