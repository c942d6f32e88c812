import pytest

from lab.positions import frequencies

FLOAT64_TOL = 1e-14  # two powers in float64, right to some units of 1e-16


@pytest.mark.parametrize(
    ("head_dim", "theta", "factor", "expected"),
    [
        # 8^(8/6) = 16, theta' = 160000: its -1/4, -1/2, -3/4 powers are 1/20, 1/400, 1/8000
        pytest.param(8, 10000.0, 8.0, [1.0, 0.05, 0.0025, 0.000125], id="factor_8_of_four_pairs"),
        # 3^(4/2) = 9, theta' = 900, 1 / sqrt(900) = 1/30
        pytest.param(4, 100.0, 3.0, [1.0, 1 / 30], id="factor_3_of_two_pairs"),
        # 4^(6/4) = 8, theta' = 8000: 1/20, 1/400
        pytest.param(6, 1000.0, 4, [1.0, 0.05, 0.0025], id="factor_4_of_three_pairs"),
        # 32^(12/10) = 64, theta' = 15625 * 64 = 10^6: powers of ten
        pytest.param(12, 15625.0, 32.0, [1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5], id="factor_32_of_six_pairs"),
    ],
)
def test_inverse_frequencies_by_hand(head_dim, theta, factor, expected):
    inv_freq = frequencies("ntk", head_dim=head_dim, theta=theta, factor=factor).inv_freq
    assert inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
