import itertools

import numpy as np
import pytest
from scipy.stats import binomtest

from lab.probe.limits import exact_limits, sequential_design


@pytest.mark.parametrize("tests", [1, 2, 10, 100, 500])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_without_stops_they_are_clopper_and_pearsons(tests, confidence):
    for passed in {0, 1, tests // 2, tests - 1, tests}:
        limits = exact_limits(sequential_design(tests, (0.8,), 0.0, tests), tests, passed, confidence)
        assert limits == pytest.approx(
            tuple(binomtest(passed, tests).proportion_ci(confidence, method="exact")), abs=1e-9
        )


def test_limits_after_early_stops_are_those_of_all_sequences():
    tests, confidence = 10, 0.9
    design = sequential_design(tests, (0.7,), 0.1, 2)
    ends = []
    for outcomes in itertools.product((0, 1), repeat=tests):
        look = next(t for t in design.looks if design.is_over(t, sum(outcomes[:t])))
        ends.append((look, sum(outcomes[:look]), sum(outcomes)))
    looks, passed, ones = np.array(ends).T
    assert len(set(looks)) > 2, "the design does stop early"

    def tail(share, outcomes):
        return (share**ones * (1 - share) ** (tests - ones))[outcomes].sum()

    for look, x in sorted(set(zip(looks.tolist(), passed.tolist(), strict=True))):
        low, high = exact_limits(design, look, x, confidence)
        assert low == 0 if x == 0 else tail(low, passed * look >= x * looks) == pytest.approx(0.05, abs=1e-9)
        assert high == 1 if x == look else tail(high, passed * look <= x * looks) == pytest.approx(0.05, abs=1e-9)
