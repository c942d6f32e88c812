import pytest

from lab.positions import frequencies

FLOAT64_TOL = 1e-14  # a power and a division in float64, right to some units of 1e-16


@pytest.mark.parametrize(
    ("head_dim", "theta", "factor", "expected"),
    [
        # 10^0, 10^-1, 10^-2, 10^-3, each over 4
        pytest.param(8, 10000.0, 4.0, [0.25, 0.025, 0.0025, 0.00025], id="four_pairs_factor_4"),
        # 1, 1/10, 1/100 over 2.5
        pytest.param(6, 1000.0, 2.5, [0.4, 0.04, 0.004], id="three_pairs_factor_2.5"),
        # 1 and 1 / sqrt(500000) = 0.0014142135623730950, over 8
        pytest.param(4, 500000.0, 8, [0.125, 1.7677669529663688e-4], id="whole_factor"),
        # the one pair there is, 1 over 1.5
        pytest.param(2, 10000.0, 1.5, [2 / 3], id="one_pair"),
    ],
)
def test_inverse_frequencies_by_hand(head_dim, theta, factor, expected):
    inv_freq = frequencies("pi", head_dim=head_dim, theta=theta, factor=factor).inv_freq
    assert inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
