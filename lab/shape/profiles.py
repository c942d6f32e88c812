"""Profiles: the distribution of the distances between pairs of tokens, by bins.

    p(b) = sum over distances i in bin b of f(i)  /  sum over all i >= 1 of f(i)

f(0) is left out: it is the number of tokens. The natural profile is that of a corpus's documents cut every T tokens.
The aim of a run is (1 - s) natural + s target, s the strength, and the distance between two profiles is their total
variation: the share of the pairs that would have to move,

    TV(p, q) = 1/2 sum over bins of |p(b) - q(b)|

Targets, f the natural position frequency (arXiv:2410.18745, Eq. 2), i = 1 .. T - 1:

    flat    1 for i <= up_to, 0 beyond
    power   f(i)^exponent
    bump    f(i) (1 + height exp(-((i - c) / w)^2 / 2)),   c = center_frac T, w = width_frac T
    exact   f(i) with EXACT's weights (lab.shape.exact)

Strategy weights takes the supervised f for f: its targets are counted in place of its tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.shape.config import Bump, Exact, Flat, Power, ShapeConfig
from lab.shape.exact import exact_frequency

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BINS = 64


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
    longer = np.cumsum(counts[::-1])[::-1][1:].astype(np.float64)  # segments of more than i tokens
    frequency: FloatArray = np.cumsum(longer[::-1])[::-1]
    return frequency


def binned(values: FloatArray, edges: IntArray) -> FloatArray:
    """Sum values by bins of distances; the value at distance 0 is left out.

    Shapes: (window,), (bins + 1,) -> (bins,).
    """
    sums: FloatArray = np.add.reduceat(values, edges[:-1])
    return sums


def share(values: FloatArray) -> FloatArray:
    """Divide by the sum."""
    shares: FloatArray = values / values.sum()
    return shares


def total_variation(p: FloatArray, q: FloatArray) -> float:
    """Compute the total variation between two profiles.

    Example:
        >>> total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
        0.25
    """
    return float(np.abs(p - q).sum() / 2)


def target_profile(config: ShapeConfig, natural: FloatArray, edges: IntArray) -> FloatArray:
    """Compute the profile of a target at full strength.

    Shapes: natural f (window,) -> (bins,).
    """
    return share(binned(target_frequency(config, natural), edges))


def target_frequency(config: ShapeConfig, natural: FloatArray) -> FloatArray:
    """Compute the f of a target at full strength, up to a factor.

    Shapes: natural f (window,) -> (window,).
    """
    window, target = len(natural), config.target
    i = np.arange(window, dtype=np.float64)
    if isinstance(target, Flat):
        assert target.up_to is None or target.up_to < window, "the experiment refuses distances beyond the window"
        return (i <= (target.up_to or window)).astype(np.float64)
    if isinstance(target, Exact):
        return exact_frequency(target, natural)
    if isinstance(target, Power):
        power: FloatArray = (natural / natural[0]) ** target.exponent
        return power
    assert isinstance(target, Bump), "the config knows four targets"
    away = (i - target.center_frac * window) / (target.width_frac * window)
    bump: FloatArray = natural * (1 + target.height * np.exp(-(away**2) / 2))
    return bump
