"""How often limits hold the true value, by simulation, and what few seeds show."""

import numpy as np
import pandas as pd
import pytest

from eval.engine.regression import fit, jackknife
from lab.results.statistics import NONE, SHARES, binomial_variance, compare_over_seeds, mean_with_limits


def covered(truth, limits):
    low, high = np.array(limits).T
    return float(np.mean((low <= truth) & (truth <= high)))


def branches(generator, bases):
    """Draw five branches of each base; reach has an error of the base, .3, one of the branch, .1, and an end."""
    rows = []
    for base in range(bases):
        shift = generator.normal(0, 0.3)
        for branch, f in enumerate(np.exp(generator.normal(0, 1, 5))):
            y = 0.5 * np.log(f) + shift + generator.normal(0, 0.1)
            rows.append((base, f"{base}-{branch}", f, min(y, 0.8), np.inf if y > 0.8 else y))
    return pd.DataFrame(rows, columns=["base", "run", "f", "low", "high"])


@pytest.mark.slow
@pytest.mark.parametrize(("bases", "least"), [(5, 0.9), (3, 0.85)])
def test_limits_of_reach_over_shared_bases(bases, least):
    generator = np.random.default_rng(0)
    draws = [branches(generator, bases) for _ in range(300)]
    limits = [jackknife(points, fit(points, ("f",)))[0].loc["f", ["low", "high"]].tolist() for points in draws]
    assert covered(0.5, limits) >= least


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize("acquired", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_limits_of_shares_of_runs_that_have_or_have_not_acquired_retrieval(seeds, acquired):
    generator = np.random.default_rng(0)
    shares = np.where(generator.random((1000, seeds)) < acquired, 0.95, 0.05)
    found = generator.binomial(64, shares) / 64
    limits = [mean_with_limits(row.tolist(), ends=SHARES)[1:] for row in found]
    assert covered(0.95 * acquired + 0.05 * (1 - acquired), limits) >= 0.9
    assert 0 <= np.min(limits) <= np.max(limits) <= 1


def test_nothing_against_everything_in_five_seeds_is_significant():
    """0 and 64 of 64: a variance of 1/66 * 65/66 / 66 in each seed and arm, t = 1 / (.02127 / sqrt(5)) = 105."""
    floor = binomial_variance(0.0, 64)
    assert floor == pytest.approx(65 / 66**3)
    none, every = dict.fromkeys(range(5), 0.0), dict.fromkeys(range(5), 1.0)
    paired = compare_over_seeds(none, every, floor)
    assert paired.p < 1e-6
    other = compare_over_seeds(none, {seed + 5: 1.0 for seed in every}, floor)
    assert other.p < 1e-6
    assert compare_over_seeds(none, dict(none), floor).p == 1
    assert compare_over_seeds(none, every) == NONE, "without tests there is no error"
    three = dict.fromkeys(range(3), 0.0), dict.fromkeys(range(3), 1.0)
    assert compare_over_seeds(*three, floor) == NONE, "three seeds are described"


@pytest.mark.slow
def test_the_floor_makes_no_difference_out_of_nothing():
    generator = np.random.default_rng(0)
    for share in (0.02, 0.5, 0.98):
        found = generator.binomial(64, share, (1000, 2, 5)) / 64
        p = []
        for first, second in found:
            floor = np.mean([binomial_variance(x, 64) for x in (*first, *second)])
            p.append(compare_over_seeds(dict(enumerate(first)), dict(enumerate(second)), floor).p)
        assert np.mean(np.array(p) <= 0.05) <= 0.05
