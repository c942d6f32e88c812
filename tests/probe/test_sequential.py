import itertools
import math

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from lab.probe.curve import last_passing
from lab.probe.intervals import doubts_at, fewest, full_design, sequential_design

FINE = np.linspace(1e-4, 1 - 1e-4, 1201)
DESIGNS = [  # tests, thresholds, error, round
    (500, (0.8,), 0.005, 25),
    (500, (0.5,), 0.02, 40),
    (500, (0.5, 0.8, 0.9), 0.005, 50),
    (100, (0.8,), 0.01, 1),
    (97, (0.6,), 0.01, 10),
    (40, (1.0,), 0.01, 2),
    (40, (0.0,), 0.01, 2),
    (1, (0.8,), 0.01, 1),
]


def walk(design, outcomes):
    """Follow one model's tests, 0 or 1 each, to where the design stops."""
    for look in design.looks:
        passed = sum(outcomes[:look])
        if design.is_over(look, passed):
            return look, passed
    raise AssertionError("no design goes on for ever")


@pytest.mark.parametrize(("tests", "error", "size"), [(9, 0.05, 1), (10, 0.1, 2), (11, 0.0, 3), (7, 0.05, 7)])
def test_points_tests_and_disagreement_are_those_of_all_sequences(tests, error, size):
    design = sequential_design(tests, (0.7,), error, size)
    shares = np.array([0.2, 0.65, 0.7, 0.9])
    ways, used, differs = {}, np.zeros(4), np.zeros(4)
    for outcomes in itertools.product((0, 1), repeat=tests):
        look, passed = walk(design, outcomes)
        weight = shares ** sum(outcomes) * (1 - shares) ** (tests - sum(outcomes))
        ways[look, passed] = ways.get((look, passed), 0) + 1
        used += weight * look
        differs += weight * ((passed / look >= 0.7) != (sum(outcomes) / tests >= 0.7))
    np.testing.assert_allclose(design.stopping_probabilities(shares) @ design.points[0], used, rtol=1e-12)
    np.testing.assert_allclose(design.disagreement(shares)[0], differs, atol=1e-14)
    counts, passed, logs = design.points
    found = {(int(t), int(x)): math.exp(log) * 2 ** (tests - t) for t, x, log in zip(counts, passed, logs, strict=True)}
    assert found == pytest.approx(ways)


@pytest.mark.parametrize("settings", DESIGNS, ids=str)
def test_the_verdict_differs_from_that_of_all_tests_no_more_often_than_stated(settings):
    tests, _, error, _ = settings
    design = sequential_design(*settings)
    assert design.disagreement(FINE).max() <= error
    np.testing.assert_allclose(design.stopping_probabilities(FINE).sum(1), 1, atol=1e-9)
    assert ((design.stopping_probabilities(FINE) @ design.points[0]) <= tests).all()


@pytest.mark.parametrize(("error", "least"), [(0.001, 0.0005), (0.1, 0.08)])
def test_the_stated_error_is_used_up(error, least):
    assert least < sequential_design(500, (0.8,), error, 25).disagreement(FINE).max() <= error


@pytest.mark.parametrize(("tests", "threshold", "size"), [(20, 0.8, 1), (30, 0.5, 4), (25, 1.0, 1), (25, 0.0, 5)])
def test_without_error_it_stops_exactly_where_the_rest_cannot_matter(tests, threshold, size):
    design = sequential_design(tests, (threshold,), 0.0, size)
    needed = next(k for k in range(tests + 1) if k / tests >= threshold)
    for look in design.looks:
        for passed in range(look + 1):
            certain = passed >= needed or passed + tests - look < needed
            assert design.is_over(look, passed) == certain or look == tests
    assert not design.disagreement(FINE).any()


def test_several_thresholds_stop_where_all_of_them_are_decided():
    tests, size = 30, 3
    several = sequential_design(tests, (0.5, 0.8), 0.0, size)
    alone = [sequential_design(tests, (threshold,), 0.0, size) for threshold in (0.5, 0.8)]
    for look in several.looks:
        for passed in range(look + 1):
            assert several.is_over(look, passed) == all(design.is_over(look, passed) for design in alone)


@pytest.mark.parametrize(("tests", "threshold"), [(500, 0.8), (97, 0.6), (40, 1.0)])
def test_doubt_is_the_beta_binomial_probability_of_the_other_verdict(tests, threshold):
    looks = [1, tests // 3, tests - 1]
    needed = math.ceil(round(threshold * tests, 9))
    for look, doubt in zip(looks, doubts_at(tests, (threshold,), looks), strict=True):
        for x in range(0, look + 1, 7):
            passes = betabinom.sf(needed - x - 1, tests - look, x + 1, look - x + 1)
            strays = (x / look >= threshold) != (passes > 0.5)
            assert doubt[x] == pytest.approx(1.0 if strays else min(passes, 1 - passes), abs=1e-9)


def test_a_stop_never_stands_on_the_other_side_of_the_threshold():
    for settings in DESIGNS:
        design = sequential_design(*settings)
        counts, passed, _ = design.points
        for threshold in design.thresholds:
            needed = fewest(design.tests, threshold) - passed
            likely = binom.sf(needed - 1, design.tests - counts, np.clip(passed / counts, 1e-3, 1 - 1e-3)) > 0.5
            early = counts < design.tests
            assert (likely == (passed / counts >= threshold))[early].all()


def test_all_tests_are_one_look():
    design = full_design(50, (0.8,))
    assert design.looks == (50,)
    assert all(design.is_over(50, passed) for passed in range(51))
    assert (design.stopping_probabilities(FINE) @ design.points[0]).round(9).tolist() == [50] * len(FINE)
    assert not design.disagreement(FINE).any()


@pytest.mark.parametrize(
    ("tests", "threshold", "needed"),
    [(500, 0.8, 400), (100, 0.8, 80), (3, 0.5, 2), (10, 0.3, 3), (7, 1.0, 7), (7, 0.0, 0), (1, 0.01, 1)],
)
def test_the_fewest_that_pass_are_the_smallest_share_at_the_threshold(tests, threshold, needed):
    assert fewest(tests, threshold) == needed
    assert needed / tests >= threshold
    assert needed == 0 or (needed - 1) / tests < threshold


GRIDS = {"demo": (32, 128, 352), "2K": (128, 256, 4096), "4K": (128, 256, 8192)}  # step, first, last


def simulated(grid, models, seed, error):
    """Probe models whose share falls as a logistic in log length; both ways are given the same outcomes.

    The share is top / (1 + (length / middle)^slope): top uniform in 0.9 to 1, middle log-uniform from half the first
    length to one and a half times the last, slope log-uniform in 1.5 to 30.
    """
    step, first, last = GRIDS[grid]
    lengths, rng = np.arange(first, last + 1, step), np.random.default_rng(seed)
    design = sequential_design(500, (0.8,), error, 25)
    same, used = 0, 0
    for _ in range(models):
        middle = np.exp(rng.uniform(np.log(first / 2), np.log(last * 1.5)))
        slope = np.exp(rng.uniform(np.log(1.5), np.log(30)))
        shares = rng.uniform(0.9, 1) / (1 + (lengths / middle) ** slope)
        passed = (rng.random((len(lengths), 500)) < shares[:, None]).cumsum(1)
        stops = [next(t for t in design.looks if design.is_over(t, row[t - 1])) for row in passed]
        seen = [row[t - 1] / t for row, t in zip(passed, stops, strict=True)]
        same += last_passing(lengths, seen, 0.8) == last_passing(lengths, passed[:, -1] / 500, 0.8)
        used += np.mean(stops) / 500
    return same / models, used / models


def test_simulated_models_get_their_effective_length_from_a_third_of_the_tests():
    same, used = simulated("demo", 150, 0, 0.005)
    assert same >= 0.98  # of 150: two models may differ by chance
    assert used <= 1 / 3


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
def test_many_simulated_models_get_their_effective_length_from_a_third_of_the_tests(grid):
    same, used = simulated(grid, 4000, 1, 0.005)
    print(f"{grid}: same effective length in {same:.4f} of models, {used:.3f} of the tests")
    assert same >= 0.99
    assert used <= 1 / 3
