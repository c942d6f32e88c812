import math

import pytest
import torch

from lab.errors import ConfigError
from lab.positions import frequencies
from lab.positions.rope import base_warning, longest_context, smallest_base

FLOAT64_TOL = 1e-15  # a power in float64 is right to a few units in the last place of numbers below one


@pytest.mark.parametrize(
    ("head_dim", "theta", "expected"),
    [
        # theta^(-2j/8) for theta = 10^4: exponents 0, -1/4, -1/2, -3/4, so 10^0, 10^-1, 10^-2, 10^-3
        pytest.param(8, 10000.0, [1.0, 0.1, 0.01, 0.001], id="four_pairs_base_1e4"),
        # exponents 0 and -1/2: 1 / sqrt(500000) = sqrt(2) / 1000
        pytest.param(4, 500000.0, [1.0, 0.001414213562373095], id="two_pairs_base_5e5"),
        # exponents 0, -1/3, -2/3 of 1000: 1, 1/10, 1/100
        pytest.param(6, 1000.0, [1.0, 0.1, 0.01], id="three_pairs_base_1e3"),
        # one pair turns by one radian per token whatever the base
        pytest.param(2, 777.0, [1.0], id="one_pair"),
        # a base of one: all pairs turn alike
        pytest.param(6, 1.0, [1.0, 1.0, 1.0], id="base_one"),
    ],
)
def test_inverse_frequencies_by_hand(head_dim, theta, expected):
    inv_freq = frequencies("rope", head_dim=head_dim, theta=theta).inv_freq
    assert inv_freq.dtype == torch.float64
    assert inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL, abs=FLOAT64_TOL)


@pytest.mark.parametrize("head_dim", [7, 1, 0, -2])
def test_head_dim_that_has_no_pairs_is_refused(head_dim):
    with pytest.raises(ConfigError, match=rf"^head_dim={head_dim}: must be even and >= 2"):
        frequencies("rope", head_dim=head_dim)


@pytest.mark.parametrize("theta", [0.0, -1.0, float("nan")])
def test_theta_that_is_not_positive_is_refused(theta):
    with pytest.raises(ConfigError, match=rf"^theta={theta}: must be > 0"):
        frequencies("rope", head_dim=8, theta=theta)


def test_the_bound_of_the_rotary_base():
    # 0.0424 * 4096^1.628 = 0.0424 * e^(1.628 * 8.317766) = 0.0424 * e^13.541323 = 32,233
    assert smallest_base(4096) == pytest.approx(0.0424 * math.exp(1.628 * math.log(4096)))
    assert abs(longest_context(smallest_base(4096)) - 4096) <= 1
    assert base_warning(10_000, 2048) is None
    assert base_warning(10_000, 4096).startswith("model.theta=10000: serves 1,995 tokens")
