import math

import pytest
import torch

from lab.positions import frequencies
from tests.positions.huggingface import TRANSFORMERS_TOL, transformers_rope

FLOAT64_TOL = 1e-13  # a ramp of logarithms, a power and a square in float64, right to some tens of units of 1e-16

FLOAT32_RAMP = 1e-7  # the library's error of 1 - ramp, which is large beside what is left of a pair slowed by s


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
        # (0.1 * 5 + 1)^2
        pytest.param(math.e**5, None, 2.25, id="factor_e5"),
        # ln 8 = 2.0794415416798359, (1.20794415416798359)^2 = 1.45912907958860531
        pytest.param(8.0, None, 1.4591290795886053, id="factor_8"),
        # given, it takes the logarithm's place: 1.5^2, 0.5^2, 1
        pytest.param(8.0, 1.5, 2.25, id="given"),
        pytest.param(8.0, 0.5, 0.25, id="given_below_one"),
        pytest.param(8.0, 1, 1.0, id="given_one"),
    ],
)
def test_logit_factor_by_hand(factor, attention_factor, expected):
    for layer in (0, 21):
        built = yarn(factor=factor, attention_factor=attention_factor)
        factors = built.logit_factor(torch.tensor([0, 5, 100_000]), layer)
        assert factors.dtype == torch.float64
        assert factors.tolist() == pytest.approx([expected] * 3, rel=FLOAT64_TOL)


@pytest.mark.parametrize("truncate", [True, False], ids=["whole_pairs", "as_computed"])
@pytest.mark.parametrize(("head_dim", "theta"), [(2, 10000.0), (8, 100.0), (128, 500000.0)])
def test_factor_one_is_rope(head_dim, theta, truncate):
    one = yarn(head_dim, theta, factor=1.0, truncate=truncate)
    assert torch.equal(one.inv_freq, frequencies("rope", head_dim=head_dim, theta=theta).inv_freq)
    assert (one.logit_factor(torch.arange(5), 3) == 1.0).all()


@pytest.mark.parametrize("truncate", [True, False], ids=["whole_pairs", "as_computed"])
@pytest.mark.parametrize("betas", [(32.0, 1.0), (16.0, 2.0), (64.0, 0.25)], ids=["paper", "narrow", "wide"])
@pytest.mark.parametrize(("factor", "attention_factor"), [(1.5, None), (4.0, 1.3), (32.0, None)])
@pytest.mark.parametrize(
    ("head_dim", "theta", "train_len"),
    [(128, 10000.0, 2048), (64, 500000.0, 8192), (32, 100.0, 4096)],
    ids=["llama2", "llama3", "small_base"],
)
def test_equals_the_transformers_library(head_dim, theta, train_len, factor, attention_factor, betas, truncate):
    parameters = {"factor": factor, "beta_fast": betas[0], "beta_slow": betas[1], "truncate": truncate}
    parameters["attention_factor"] = attention_factor
    inv_freq, scaling = transformers_rope("yarn", head_dim=head_dim, theta=theta, train_len=train_len, **parameters)
    ours = yarn(head_dim, theta, train_len, **parameters)
    tolerance = max(TRANSFORMERS_TOL, factor * FLOAT32_RAMP)
    assert ours.inv_freq.tolist() == pytest.approx(inv_freq, rel=tolerance)
    # the library multiplies cos and sin of both query and key
    assert float(ours.logit_factor(torch.tensor([7]), 0)) == pytest.approx(scaling**2, rel=FLOAT64_TOL)


@pytest.mark.parametrize("factor", [1.0, 4.0, 20.0])
def test_inverse_frequencies_are_those_of_ntk_by_parts(factor):
    parameters = {"factor": factor, "train_len": 512, "beta_fast": 16.0, "beta_slow": 0.5, "truncate": False}
    parts = frequencies("ntk_by_parts", head_dim=64, **parameters)
    assert torch.equal(yarn(64, **parameters).inv_freq, parts.inv_freq)
    assert not parts.scales_logits
