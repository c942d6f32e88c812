import pytest

from lab.positions import frequencies

FLOAT64_TOL = 1e-13  # a power and a step in float64, right to some tens of units of 1e-16


def llama3(head_dim=8, theta=10000.0, **parameters):
    return frequencies("llama3", head_dim=head_dim, theta=theta, **parameters)


@pytest.mark.parametrize(
    ("train_len", "parameters", "expected"),
    [
        # RoPE's 1, 1/10, 1/100, 1/1000; wavelengths in 2048 tokens: 325.9, 32.59, 3.259493234522016, 0.3259
        # smooth 1, 1, (3.259493234522016 - 1) / 3 = 0.753164411507339, 0; (1 - smooth) / 8 + smooth = 0.784018860068921
        pytest.param(2048, {}, [1.0, 0.1, 0.00784018860068921, 0.000125], id="llama_3.1s_step"),
        # between 3 and 30 wavelengths: smooth 1, 1, 0.259493234522016 / 27 = 0.009610860537852462, 0;
        # (1 - smooth) / 8 + smooth = 0.125 + 0.875 * it = 0.133409502970621
        pytest.param(
            2048,
            {"low_freq_factor": 3.0, "high_freq_factor": 30.0},
            [1.0, 0.1, 0.00133409502970621, 0.000125],
            id="wider_step",
        ),
        # all but the first wave longer than 12 / 1 tokens: 62.8, 628, 6283; the first, 6.283 tokens, is between:
        # smooth (12 / 6.283185307179586 - 1) / 3 = 0.303286439034248; 0.125 + 0.875 * it = 0.390375634154967
        pytest.param(12, {}, [0.390375634154967, 0.0125, 0.00125, 0.000125], id="short_training"),
        # all waves shorter than 131072 / 4 tokens: nothing is slowed
        pytest.param(131072, {}, [1.0, 0.1, 0.01, 0.001], id="long_training"),
    ],
)
def test_inverse_frequencies_by_hand(train_len, parameters, expected):
    inv_freq = llama3(factor=8.0, train_len=train_len, **parameters).inv_freq
    assert inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
