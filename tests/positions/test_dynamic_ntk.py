import pytest

from lab.positions import frequencies

FLOAT64_TOL = 1e-14  # two powers in float64, right to some units of 1e-16


@pytest.mark.parametrize(
    ("head_dim", "theta", "factor", "train_len", "length", "expected"),
    [
        # 2 * 200 / 100 - 1 = 3, 3^(4/2) = 9: 1 / sqrt(90000)
        pytest.param(4, 10000.0, 2.0, 100, 200, [1.0, 1 / 300], id="twice_the_length"),
        # 2 * 150 / 100 - 1 = 2, squared 4: 1 / sqrt(40000)
        pytest.param(4, 10000.0, 2.0, 100, 150, [1.0, 1 / 200], id="half_as_long_again"),
        # 4 * 1024 / 512 - 3 = 5, squared 25: 1 / sqrt(2500)
        pytest.param(4, 100.0, 4.0, 512, 1024, [1.0, 0.02], id="factor_4"),
        # 2 * 250 / 100 - 1 = 4, 4^(6/4) = 8: 8000^(-1/3), 8000^(-2/3)
        pytest.param(6, 1000.0, 2.0, 100, 250, [1.0, 0.05, 0.0025], id="three_pairs"),
        # factor 1 follows the length alone: 512 / 64 = 8, 8^(8/6) = 16: powers of 160000
        pytest.param(8, 10000.0, 1.0, 64, 512, [1.0, 0.05, 0.0025, 0.000125], id="factor_1"),
    ],
)
def test_inverse_frequencies_by_hand(head_dim, theta, factor, train_len, length, expected):
    parameters = {"factor": factor, "train_len": train_len, "length": length}
    inv_freq = frequencies("dynamic_ntk", head_dim=head_dim, theta=theta, **parameters).inv_freq
    assert inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
