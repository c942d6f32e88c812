import itertools
import math

import numpy as np
import pytest
from scipy.stats import betabinom, binomtest

from lab.probe.limits import doubts_at, exact_limits, sequential_design

FINE = np.linspace(1e-4, 1 - 1e-4, 1201)
DESIGNS = [  # tests, thresholds, error, round
    (500, (0.8,), 0.005, 25),
    (500, (0.5, 0.8, 0.9), 0.005, 50),
    (97, (0.6,), 0.01, 10),
    (40, (1.0,), 0.01, 2),
    (1, (0.8,), 0.01, 1),
]


def walk(design, outcomes):
    """Follow one model's tests, 0 or 1 each, to where the design stops."""
    return next((look, x) for look in design.looks if design.is_over(look, x := sum(outcomes[:look])))


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


@pytest.mark.parametrize(("tests", "threshold"), [(500, 0.8), (97, 0.6), (40, 1.0)])
def test_doubt_is_the_beta_binomial_probability_of_the_other_verdict(tests, threshold):
    looks = [1, tests // 3, tests - 1]
    needed = math.ceil(round(threshold * tests, 9))
    for look, doubt in zip(looks, doubts_at(tests, (threshold,), looks), strict=True):
        for x in range(0, look + 1, 7):
            passes = betabinom.sf(needed - x - 1, tests - look, x + 1, look - x + 1)
            strays = (x / look >= threshold) != (passes > 0.5)
            assert doubt[x] == pytest.approx(1.0 if strays else min(passes, 1 - passes), abs=1e-9)


def test_a_model_far_from_the_threshold_takes_few_tests():
    design = sequential_design(500, (0.8,), 0.005, 25)
    used = design.stopping_probabilities(np.array([0.3, 0.99])) @ design.points[0]
    assert (used < 60).all()  # of 500; two rounds take 50


@pytest.mark.parametrize("tests", [1, 2, 10, 100, 500])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_without_stops_they_are_clopper_and_pearsons(tests, confidence):
    for passed in {0, 1, tests // 2, tests - 1, tests}:
        limits = exact_limits(sequential_design(tests, (0.8,), 0.0, tests), tests, passed, confidence)
        expected = binomtest(passed, tests).proportion_ci(confidence, method="exact")
        assert limits == pytest.approx(tuple(expected), abs=1e-9)


def test_limits_after_early_stops_are_those_of_all_sequences():
    tests, confidence = 10, 0.9
    design = sequential_design(tests, (0.7,), 0.1, 2)
    ends = [(*walk(design, outcomes), sum(outcomes)) for outcomes in itertools.product((0, 1), repeat=tests)]
    looks, passed, ones = np.array(ends).T
    assert len(set(looks)) > 2, "the design does stop early"

    def tail(share, outcomes):
        return (share**ones * (1 - share) ** (tests - ones))[outcomes].sum()

    for look, x in sorted(set(zip(looks.tolist(), passed.tolist(), strict=True))):
        low, high = exact_limits(design, look, x, confidence)
        assert low == 0 if x == 0 else tail(low, passed * look >= x * looks) == pytest.approx(0.05, abs=1e-9)
        assert high == 1 if x == look else tail(high, passed * look <= x * looks) == pytest.approx(0.05, abs=1e-9)
