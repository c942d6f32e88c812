"""Loss weights by visible context that aim the supervised f at a profile.

With n_c targets of context c and weights w_c, the supervised f is f(i) = sum over c >= i of n_c w_c, so that an aim g
is met by

    n_c w_c = g(c) - g(c + 1),     g(T) = 0, g scaled to g(0) = N = sum of n_c: the mean weight is 1

wherever g does not rise; before that it is replaced by the nearest non-increasing function, in least squares. For
n = 2 2 1 and g = 5 4 3 the weights are 1/2, 1/2 and 3: f = 5 4 3 in place of 5 3 1.

Weights are at most W, so that f can fall by no more than W n_c at c. With F(i) = sum over c >= i of n_c, the largest
such function below g, and then the smallest that still begins at N, are

    below(i) = min over j >= i of g(j) + W (F(i) - F(j)),     reached(i) = max(below(i), N - W (N - F(i)))

Short of W nothing changes. The total variation between the aim and what is reached is reported as for ids with gaps.
"""

from __future__ import annotations

import numpy as np

from lab.shape.config import ShapeConfig
from lab.shape.plan import NO_DRAWS, Plan
from lab.shape.profiles import FloatArray, IntArray, bin_edges, profile_of, sum_to_the_end, target_frequency

MAX_WEIGHT = 8.0  # of a target; the mean is 1


def weights_for(aim: FloatArray, targets: IntArray, most: float = MAX_WEIGHT) -> FloatArray:
    """Compute the weights, each in 0 .. most, with mean 1 over the targets.

    Shapes: aim, f(i) up to a factor, and targets by visible context (window,) -> (window,).
    Example:
        >>> weights_for(np.array([5.0, 4, 3]), np.array([2, 2, 1]), 8.0).tolist()
        [0.5, 0.5, 3.0]
        >>> weights_for(np.array([5.0, 4, 3]), np.array([2, 2, 1]), 2.0).tolist()
        [0.5, 1.0, 2.0]
    """
    from scipy.optimize import isotonic_regression  # takes longer to import than a config to check

    falling = isotonic_regression(aim, increasing=False).x
    total = targets.sum()
    aimed = np.append(falling * (total / falling[0]), 0.0)
    most_f = most * np.append(sum_to_the_end(targets), 0.0)  # f if all weights were the largest
    below = most_f + np.minimum.accumulate((aimed - most_f)[::-1])[::-1]
    reached = np.maximum(below, total - (most_f[0] - most_f))
    weights = np.divide(-np.diff(reached), targets, out=np.ones(len(targets)), where=targets > 0)
    clipped: FloatArray = np.clip(weights, 0.0, most) + 0.0  # against rounding, and -0.0
    return clipped


def plan_weights(config: ShapeConfig, targets: IntArray) -> Plan:
    """Plan the weights of a corpus's targets, counted by visible context.

    Shapes: targets (window,).
    Raises: ConfigError for a target out of reach.
    """
    natural, edges = sum_to_the_end(targets), bin_edges(len(targets))
    goal = target_frequency(config, natural)
    base, aim = natural / natural[1:].sum(), goal / goal[1:].sum()
    weights = weights_for(aim, targets)
    pairs = natural[1:].sum() / natural[0]  # attention's work does not change
    return Plan(
        NO_DRAWS,
        np.add.reduceat(base, edges[:-1]),
        np.add.reduceat(aim, edges[:-1]),
        profile_of(sum_to_the_end(targets * weights), edges),
        edges,
        pairs,
        pairs,
        weights,
    ).within_reach(config)
