"""Statistics of a sample's ids: the distances between its tokens, and the lengths of runs of consecutive ids.

At ids 0 1 2 5 6 10 the pairs are 1, 2, 5, 6, 10, 1, 4, 5, 9, 3, 4, 8, 1, 5 and 4 apart, 4.53 on average, and the runs
0 1 2, 5 6 and 10 have 2 tokens on average.

Source: arXiv:2409.00509, section 6.4 and Figure 3.
"""

from __future__ import annotations

import math

import numpy as np

from lab.skip.base import IntArray


def mean_distance(ids: IntArray) -> float:
    """Compute the mean of q_pos - k_pos over all pairs of a token and an earlier one, in tokens; nan without a pair.

    The step from one token to the next is part of the distance of all pairs that it lies between.

    Shapes: (n_tokens,), strictly increasing.
    Example:
        >>> mean_distance(np.array([0, 1, 3]))
        2.0
    """
    n = len(ids)
    if n < 2:
        return math.nan
    before = np.arange(1, n)
    parted = before * (n - before) / (n * (n - 1) / 2)  # share of the pairs that each step lies between
    return float(np.diff(ids) @ parted)


def run_lengths(ids: IntArray) -> IntArray:
    """Return the lengths in tokens of the runs, the longest stretches of ids that rise by one, in order.

    Shapes: (n_tokens,), strictly increasing -> int64 (n_runs,).
    Example:
        >>> run_lengths(np.array([0, 1, 2, 5, 6, 10]))
        array([3, 2, 1])
    """
    last = np.append(np.diff(ids) > 1, True)
    return np.diff(np.flatnonzero(last), prepend=-1)
