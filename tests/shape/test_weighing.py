"""Loss weights by visible context: by hand, against a linear program, and EXACT's against its buckets one by one."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from lab.errors import ConfigError
from lab.shape import ByContext, Exact, exact_weights, plan_weights, weights_for

WINDOW = 48
ROUNDING = 1e-9  # targets, of sums of some 10^6


def targets_of(seed, window=WINDOW):
    """Count the contexts of segments of drawn lengths, one by one."""
    counts = np.zeros(window, dtype=np.int64)
    for length in np.random.default_rng(seed).lognormal(2.5, 1.1, 800).astype(int) + 1:
        counts[: min(length, window)] += 1
    return counts


def f_of(values):
    """Sum over c >= i, for each i."""
    return np.array([values[i:].sum() for i in range(len(values))])


def least_deviation(aim, targets, most):
    """Solve for the weights that minimise the sum of |f - aim|, as a linear program, and return that sum."""
    n, total = len(targets), targets.sum()
    f = np.triu(np.ones((n, n))) * targets / total
    aim = aim / aim[0]
    above, below = np.hstack([f, -np.eye(n)]), np.hstack([-f, -np.eye(n)])
    solution = linprog(
        np.append(np.zeros(n), np.ones(n)),
        A_ub=np.vstack([above, below]),
        b_ub=np.append(aim, -aim),
        A_eq=np.append(targets / total, np.zeros(n))[None],
        b_eq=[1.0],
        bounds=[(0, most)] * n + [(0, None)] * n,
    )
    assert solution.success
    return solution.fun


def test_weights_by_hand():
    # n = 4 2 2: g = 8 6 2 falls by 2, 4, 2. Of at most 3/2: from the end 2, then 3 of the 4, so that the first has 3
    targets = np.array([4, 2, 2])
    assert weights_for(np.array([8.0, 6, 2]), targets, 8.0).tolist() == [0.5, 2.0, 1.0]
    assert weights_for(np.array([4.0, 3, 1]), targets, 1.5).tolist() == [0.75, 1.5, 1.0]
    # n = 1 1 2: g = 4 0 0 wants 4 on the first; of at most 2 it has 2 of the 4, and the second the others
    assert weights_for(np.array([4.0, 0, 0]), np.array([1, 1, 2]), 2.0).tolist() == [2.0, 2.0, 0.0]
    # a context that no target has weighs 1 and takes nothing
    assert weights_for(np.array([6.0, 4, 4, 2]), np.array([2, 0, 2, 2]), 8.0).tolist() == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("most", [1.0, 1.5, 3.0, 50.0])
@pytest.mark.parametrize("power", [0.5, 0.85, 1.0, 2.0, 4.0])
def test_no_weights_come_nearer_to_an_aim_that_falls(power, most):
    targets = targets_of(0)
    aim = f_of(targets) ** power
    weights = weights_for(aim, targets, most)
    assert 0 <= weights.min() <= weights.max() <= most
    assert weights @ targets == pytest.approx(targets.sum())
    deviation = np.abs(f_of(weights * targets) / targets.sum() - aim / aim[0]).sum()
    assert deviation == pytest.approx(least_deviation(aim, targets, most), abs=1e-6)
    if most == 50:
        np.testing.assert_allclose(f_of(weights * targets), aim * (targets.sum() / aim[0]), atol=ROUNDING)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_exact_weights_bucket_by_bucket(exponent):
    targets = targets_of(4).astype(float)
    members = {}
    for context in range(1, WINDOW):
        members.setdefault(2 ** int(math.log2(context)), []).append(context)
    sizes = {b: sum(targets[c] for c in own) for b, own in members.items() if b >= 0.25 * WINDOW}
    ratio = {b: (n / sum(sizes.values())) ** -exponent for b, n in sizes.items()}
    mean = sum(n * ratio[b] for b, n in sizes.items()) / sum(sizes.values())
    expected = np.ones(WINDOW)
    for b in sizes:
        expected[members[b]] += 0.15 * ratio[b] / mean
    config = ByContext(target=Exact(exponent=exponent))
    weights = exact_weights(config, targets)
    np.testing.assert_allclose(weights, expected)
    plan = plan_weights(config, targets.astype(int))
    np.testing.assert_allclose(plan.weights, expected * targets.sum() / (expected @ targets))
    assert plan.distance < 1e-9
    with pytest.raises(ConfigError, match="^weights.target.method=exact: no target sees"):
        exact_weights(config, targets * (np.arange(WINDOW) < 4))
