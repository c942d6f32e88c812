import numpy as np
import pytest

from lab.skip import mean_distance, run_lengths
from tests.skip.draws import mean_of_pairs, rng

FLOAT64_TOL = 1e-12  # sums of some hundred terms in float64


@pytest.mark.parametrize("seed", range(10))
def test_mean_distance_equals_a_loop_over_pairs(seed):
    ids = np.cumsum(rng(seed).integers(1, 30, 40))
    assert mean_distance(ids) == pytest.approx(mean_of_pairs(ids), rel=FLOAT64_TOL)


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [
        pytest.param([0, 1, 2, 5, 6, 10], [3, 2, 1], id="of_the_documentation"),
        pytest.param([0, 2, 4], [1, 1, 1], id="no_two_together"),
        pytest.param([7, 8, 9], [3], id="without_gaps"),
        pytest.param([5], [1], id="one_token"),
    ],
)
def test_runs_by_hand(ids, lengths):
    runs = run_lengths(np.array(ids))
    assert runs.tolist() == lengths
    assert runs.dtype == np.int64
