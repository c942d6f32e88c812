import pytest

from lab.positions import frequencies

FLOAT64_TOL = 1e-14  # a power in float64, right to some units of 1e-16


@pytest.mark.parametrize(
    ("head_dim", "theta", "expected"),
    [
        # left out, 500000: sqrt is 707.10678118654752, its sqrt 26.591479484724943; 1 / 26.59..., 1 / 707.1...,
        # and their product
        pytest.param(8, None, [1.0, 0.037606030930863936, 0.0014142135623730950, 5.3182958969449886e-5], id="left_out"),
        # 1 / sqrt(250000) = 1/500
        pytest.param(4, 250000.0, [1.0, 0.002], id="base_250000"),
    ],
)
def test_inverse_frequencies_by_hand(head_dim, theta, expected):
    abf = frequencies("abf", head_dim=head_dim, theta=theta)
    assert abf.inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
    assert abf.theta == (500_000.0 if theta is None else theta)
    assert abf.config.theta == abf.theta
