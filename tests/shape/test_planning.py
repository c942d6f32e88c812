"""Plans, against linear programs solved by hand and a search over all whole draws."""

from itertools import product

import numpy as np
import pytest
from lab.shape.components import choosing, packing
from lab.shape.planning import Components, nearest, whole_draws

from lab.errors import ConfigError
from lab.shape import plan_shape
from lab.shape.config import Choose, Flat, Pack, Power, ShapeConfig
from lab.shape.profiles import bin_edges, length_frequency, share, total_variation

EDGES = np.array([1, 2, 3])  # distances 1 and 2 of a window of 3
FREE = np.array([np.inf] * 3)
PAIRS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])  # of segments of 1, 2 and 3 tokens
TOKENS = np.array([1.0, 2.0, 3.0])


def components(limits=FREE):
    return Components(PAIRS, TOKENS, limits)


def test_a_profile_within_reach_is_met():
    # x2 (1, 0) + x3 (2, 1) has 1/4 of its pairs at distance 2 where x3 = (x2 + 3 x3) / 4, that is x2 = x3
    draws = nearest(components(), np.array([0.75, 0.25]))
    np.testing.assert_allclose(draws / draws.sum(), [0, 0.5, 0.5], atol=1e-9)


def test_a_profile_out_of_reach_is_come_nearest_to():
    # no more than 1/3 of the pairs can stand at distance 2: all segments of 3 tokens
    draws = nearest(components(), np.array([0.5, 0.5]))
    np.testing.assert_allclose(draws / draws.sum(), [0, 0, 1], atol=1e-9)


def test_a_limit_holds_back_what_is_rare():
    # 9 segments of 2 and 1 of 3 tokens, 21 tokens; twice as often: x3 <= 2/21 (2 x2 + 3 x3), x3 / x2 = 4 / 15
    draws = nearest(components(2 * np.array([0, 9, 1]) / 21), np.array([0.5, 0.5]))
    np.testing.assert_allclose(draws[2] / draws[1], 4 / 15)
    assert draws[0] == pytest.approx(0)


def test_choosing_limits_segments_to_their_share():
    counts = np.array([0, 0, 9, 1])
    offered = choosing(Choose(max_repeats=2.0), counts, EDGES)
    np.testing.assert_allclose(offered.pairs[1:], PAIRS[1:])
    np.testing.assert_allclose(offered.limits, [0, 18 / 21, 2 / 21])
    draws = nearest(offered, np.array([0.5, 0.5]))
    np.testing.assert_allclose(draws[2] / draws[1], 4 / 15)


@pytest.mark.parametrize("seed", range(6))
def test_no_whole_draws_come_nearer(seed):
    """All ways to draw 12 segments of lengths 1 .. 4 against the plan of 12 draws, up to what rounding costs."""
    generator = np.random.default_rng(seed)
    edges = np.arange(1, 5)
    offered = packing(4, edges)
    profile = share(generator.random(3))
    plan = nearest(offered, profile)
    best = total_variation(share(plan @ offered.pairs), profile)
    tried = []
    for draws in product(range(13), repeat=3):
        if 0 < sum(draws) <= 12:
            pairs = np.array([0, *draws]) @ offered.pairs
            tried.append(total_variation(pairs / pairs.sum(), profile))
    assert best <= min(tried) + 1e-9
    assert min(tried) <= best + 0.1


@pytest.mark.parametrize("cycle", [1, 7, 100, 4096])
def test_whole_draws_lose_none_and_stay_within_one(cycle):
    draws = np.random.default_rng(cycle).random(9) * [1, 1, 0, 1, 1, 1, 1e-12, 1, 1]
    whole = whole_draws(draws, cycle)
    assert whole.sum() == cycle
    assert whole[2] == whole[6] == 0
    assert (np.abs(whole - draws / draws.sum() * cycle) < 1).all()


def natural_of(seed, window):
    lengths = np.minimum(np.random.default_rng(seed).lognormal(3, 1.2, 3000).astype(int) + 1, window)
    counts = np.bincount(lengths, minlength=window + 1)
    return counts, length_frequency(counts)


def test_the_plan_reports_what_its_draws_show():
    counts, natural = natural_of(0, 96)
    edges = bin_edges(96)
    plan = plan_shape(ShapeConfig(target=Power(exponent=0.8), strategy=Pack()), packing(96, edges), natural)
    lengths = np.repeat(np.unique(np.linspace(1, 96, 64).round().astype(int)), plan.draws)
    pairs = np.zeros(96)
    for n in lengths:
        pairs[1:n] += n - np.arange(1, n)
    reached = np.array([pairs[a:b].sum() for a, b in zip(edges, edges[1:])]) / pairs.sum()
    np.testing.assert_allclose(plan.reached, reached)
    assert plan.pairs_per_token == pytest.approx(pairs.sum() / lengths.sum())
    assert plan.natural_pairs_per_token == pytest.approx(natural[1:].sum() / (counts @ np.arange(97)))
    assert plan.distance < 0.01


def test_strength_blends_and_0_is_natural():
    _, natural = natural_of(1, 96)
    edges = bin_edges(96)
    half = plan_shape(ShapeConfig(target=Flat(), strategy=Pack(), strength=0.3), packing(96, edges), natural)
    none = plan_shape(ShapeConfig(target=Flat(), strategy=Pack(), strength=0.0), packing(96, edges), natural)
    flat = np.diff(edges) / 95
    np.testing.assert_allclose(half.aimed, 0.7 * none.natural + 0.3 * flat)
    np.testing.assert_allclose(none.reached, none.natural, atol=2e-3)


def test_a_target_out_of_reach_names_the_nearest_one_which_is_within():
    _, natural = natural_of(2, 96)
    edges = bin_edges(96)

    def plan(strength):
        config = ShapeConfig(target=Flat(), strategy=Pack(), strength=strength, tolerance=0.05)
        return plan_shape(config, packing(96, edges), natural)

    with pytest.raises(ConfigError) as refused:
        plan(1.0)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("shape.strength=1: pack comes within a total variation of 0.2")
    nearest_strength = float(line.rpartition("=")[2])
    assert 0.1 < nearest_strength < 0.9
    assert plan(nearest_strength).distance <= 0.05
    with pytest.raises(ConfigError, match=r"nearest within it is shape\.strength"):
        plan(nearest_strength + 0.03)


def test_a_target_out_of_reach_at_every_strength_says_so():
    natural = length_frequency(np.array([0, 0, 0, 0, 1]))  # 3 2 1 pairs at distances 1 2 3
    only_pairs = Components(np.array([[1.0, 0.0, 0.0]]), np.array([2.0]), np.array([np.inf]))
    with pytest.raises(ConfigError, match=r"at every strength; the nearest is shape\.strength=0\.00 at 0\.500"):
        plan_shape(ShapeConfig(target=Flat(), strategy=Pack()), only_pairs, natural)
