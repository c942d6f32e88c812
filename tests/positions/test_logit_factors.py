"""Factors on the logits by hand; `log_n`, which every distance method takes, is in test_distances.py."""

import math

import pytest
import torch

from lab.positions import distance, frequencies

FLOAT64_TOL = 1e-13  # quotients and squares of logarithms in float64, right to some tens of units of 1e-16
RELEASED = {"shift": 200, "released_scaling": True}
CASES = [  # method, parameters, queries, factors
    # (0.1 * 1 + 1)^2
    pytest.param("yarn", {"train_len": 2048, "factor": math.e}, [0, 5, 100_000], [1.21] * 3, id="yarn_factor_e"),
    # set, it takes the logarithm's place: 1.5^2
    pytest.param("yarn", {"train_len": 9, "factor": 8.0, "attention_factor": 1.5}, [0, 9], [2.25] * 2, id="yarn_set"),
    # 1 + ln 4 / ln 100 = 1 + 2 ln 2 / (2 ln 10), at every position
    # the query at 255 sees 256 = 16^2 tokens, the one at 63 sees 64 = 16^(3/2), at 4095 16^3
    pytest.param("entropy_abf", {"train_len": 16}, [63, 255, 4095], [1.5, 2.0, 3.0], id="entropy_powers_of_16"),
    # what training covers stays as it is, the 16th token included: ln(p + 1) <= ln L
    # one more: ln 17 / ln 16 = 2.8332133440562161 / 2.7725887222397812 = 1.0218657103125849
    pytest.param("entropy_abf", {"train_len": 16}, [0, 15, 16], [1.0, 1.0, 1.0218657103125849], id="entropy_beyond"),
    # ln 2 = 0.69314718055994531, (1.069314718055994531)^2 = 1.14343396625117107
    pytest.param("string", RELEASED, [7, 63, 255], [1.1434339662511711] * 3, id="string_released"),
    # twice that
    pytest.param("string", {**RELEASED, "log_n": 16}, [7, 255], [1.1434339662511711, 2.2868679325023421], id="log_n"),
]


@pytest.mark.parametrize(("method", "parameters", "q_pos", "expected"), CASES)
def test_logit_factor_by_hand(method, parameters, q_pos, expected):
    if method == "string":
        built, layers = distance(method, **parameters), [()]
    else:
        built, layers = frequencies(method, head_dim=8, **parameters), [(2,), (31,)]
    assert built.scales_logits
    for layer in layers:
        factor = built.logit_factor(torch.tensor(q_pos), *layer)
        assert factor.dtype == torch.float64
        assert factor.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
