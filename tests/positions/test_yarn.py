import math

import pytest
import torch

from lab.positions import frequencies

FLOAT64_TOL = 1e-13  # a ramp of logarithms, a power and a square in float64, right to some tens of units of 1e-16


def yarn(head_dim=8, theta=10000.0, train_len=2048, **parameters):
    return frequencies("yarn", head_dim=head_dim, theta=theta, train_len=train_len, **parameters)


def test_inverse_frequencies_by_hand():
    # RoPE 1, 1/10, 1/100, 1/1000. The pair that makes r rotations is log10(2048 / (2 pi r)): 1.008 for 32, floor 1, and
    # 2.513 for 1, ceil 3. Ramp 0 0 1/2 1: 0.01 (1/2 + 1/2 * 1/8) = 0.005625 and 0.001 / 8
    assert yarn(factor=8.0).inv_freq.tolist() == pytest.approx([1.0, 0.1, 0.005625, 0.000125], rel=FLOAT64_TOL)


@pytest.mark.parametrize(
    ("factor", "attention_factor", "expected"),
    [
        # (0.1 * 1 + 1)^2
        pytest.param(math.e, None, 1.21, id="factor_e"),
        # ln 8 = 2.0794415416798359, (1.20794415416798359)^2 = 1.45912907958860531
        pytest.param(8.0, None, 1.4591290795886053, id="factor_8"),
        # given, it takes the logarithm's place: 1.5^2
        pytest.param(8.0, 1.5, 2.25, id="given"),
    ],
)
def test_logit_factor_by_hand(factor, attention_factor, expected):
    for layer in (0, 21):
        built = yarn(factor=factor, attention_factor=attention_factor)
        factors = built.logit_factor(torch.tensor([0, 5, 100_000]), layer)
        assert factors.dtype == torch.float64
        assert factors.tolist() == pytest.approx([expected] * 3, rel=FLOAT64_TOL)
