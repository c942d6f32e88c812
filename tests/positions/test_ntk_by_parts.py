import pytest

from lab.positions import frequencies

FLOAT64_TOL = 1e-13  # a ramp of logarithms and a power in float64, right to some tens of units of 1e-16


# dim(r) = 8 ln(L / (2 pi r)) / (2 ln theta) throughout; theta = 10^4 makes RoPE's speeds 1, 1/10, 1/100, 1/1000 and
# dim(r) = ln(L / (2 pi r)) / 2.302585 = log10(L / (2 pi r)).
@pytest.mark.parametrize(
    ("theta", "parameters", "expected"),
    [
        # dim(32) = log10(10.186) = 1.008, floor 1; dim(1) = log10(325.95) = 2.513, ceil 3; ramp 0 0 1/2 1
        # 0.01 (1/2 + 1/2 * 1/4) = 0.00625 and 0.001 / 4
        pytest.param(
            10000.0, {"factor": 4.0, "train_len": 2048}, [1.0, 0.1, 0.00625, 0.00025], id="ramp_inside_the_head"
        ),
        # dim(32) = log10(40.744) = 1.610, floor 1; dim(1) = log10(1303.8) = 3.115, ceil 4, beyond the last pair 3 but
        # below d - 1 = 7: ramp 0 0 1/3 2/3; 0.01 (1 - 1/3 * 3/4) = 0.0075 and 0.001 (1 - 2/3 * 3/4) = 0.0005
        pytest.param(
            10000.0, {"factor": 4.0, "train_len": 8192}, [1.0, 0.1, 0.0075, 0.0005], id="ramp_beyond_the_last_pair"
        ),
        # theta 100, speeds 10^(-j/2): dim(r) = 2 log10(L / (2 pi r)); dim(1000) = 2 log10(3.1831) = 1.006, floor 1;
        # dim(1) = 2 log10(3183.1) = 7.006, ceil 8, cut to d - 1 = 7: ramp 0 0 1/6 2/6
        # 0.1 (1 - 1/6 * 3/4) = 0.0875 and 10^(-3/2) (1 - 1/3 * 3/4) = 0.03162277660168379 * 3/4
        pytest.param(
            100.0,
            {"factor": 4.0, "train_len": 20000, "beta_fast": 1000.0},
            [1.0, 0.31622776601683794, 0.0875, 0.023717082451262844],
            id="ramp_cut_at_d_minus_1",
        ),
        # dim(32) = log10(0.31831) = -0.497, floor -1, cut to 0; dim(1) = log10(10.186) = 1.008, ceil 2; ramp 0 1/2 1 1
        # 0.1 (1 - 1/2 * 1/2) = 0.075, 0.01 / 2, 0.001 / 2
        pytest.param(10000.0, {"factor": 2.0, "train_len": 64}, [1.0, 0.075, 0.005, 0.0005], id="ramp_cut_at_0"),
        # dim(32) = log10(0.0298) = -1.526, cut to 0; dim(1) = log10(0.955) = -0.020, ceil 0: a ramp of no width, a step
        # after pair 0
        pytest.param(10000.0, {"factor": 2.0, "train_len": 6}, [1.0, 0.05, 0.005, 0.0005], id="step"),
    ],
)
def test_inverse_frequencies_by_hand(theta, parameters, expected):
    inv_freq = frequencies("ntk_by_parts", head_dim=8, theta=theta, **parameters).inv_freq
    assert inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
