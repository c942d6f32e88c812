"""Inverse frequencies of every frequency method by hand; a case of each is compared with transformers elsewhere."""

import math
import re

import pytest
import torch

from lab.positions import frequencies
from lab.positions.rope import base_warning, longest_context

# powers, ramps of logarithms and blends in float64, right to some tens of units of 1e-16
FLOAT64_TOL = 1e-13
PARTS = {"head_dim": 8, "factor": 4.0}
CUT = {**PARTS, "theta": 100.0, "train_len": 20000, "beta_fast": 1000.0}
LLAMA = {"head_dim": 8, "factor": 8.0}
DYNAMIC = {"head_dim": 4, "theta": 100.0, "train_len": 512}
CASES = [  # method, parameters, inverse frequencies
    # theta^(-2j/8) for theta = 10^4: exponents 0, -1/4, -1/2, -3/4, so 10^0, 10^-1, 10^-2, 10^-3
    pytest.param("rope", {"head_dim": 8}, [1.0, 0.1, 0.01, 0.001], id="rope_four_pairs"),
    # one pair turns by one radian per token whatever the base
    pytest.param("rope", {"head_dim": 2, "theta": 777.0}, [1.0], id="rope_one_pair"),
    # 10^0, 10^-1, 10^-2, 10^-3, each over 4
    pytest.param("pi", {"head_dim": 8, "factor": 4.0}, [0.25, 0.025, 0.0025, 0.00025], id="pi_four_pairs"),
    # 8^(8/6) = 16, theta' = 160000: its -1/4, -1/2, -3/4 powers are 1/20, 1/400, 1/8000
    pytest.param("ntk", {"head_dim": 8, "factor": 8.0}, [1.0, 0.05, 0.0025, 0.000125], id="ntk_four_pairs"),
    # 4 * 1024 / 512 - 3 = 5, squared 25: 1 / sqrt(2500)
    pytest.param("dynamic_ntk", {**DYNAMIC, "factor": 4.0, "length": 1024}, [1.0, 0.02], id="dynamic_ntk"),
    # NTK by parts: dim(r) = 8 ln(L / (2 pi r)) / (2 ln theta); theta = 10^4 makes RoPE's speeds 1, 1/10, 1/100, 1/1000
    # and dim(r) = ln(L / (2 pi r)) / 2.302585 = log10(L / (2 pi r)).
    # dim(32) = log10(10.186) = 1.008, floor 1; dim(1) = log10(325.95) = 2.513, ceil 3; ramp 0 0 1/2 1
    # 0.01 (1/2 + 1/2 * 1/4) = 0.00625 and 0.001 / 4
    pytest.param("ntk_by_parts", {**PARTS, "train_len": 2048}, [1.0, 0.1, 0.00625, 0.00025], id="parts_ramp_inside"),
    # theta 100, speeds 10^(-j/2): dim(r) = 2 log10(L / (2 pi r)); dim(1000) = 2 log10(3.1831) = 1.006, floor 1;
    # dim(1) = 2 log10(3183.1) = 7.006, ceil 8, cut to d - 1 = 7: 0.1 (1 - 1/6 * 3/4) = 0.0875 and
    # 10^(-3/2) (1 - 1/3 * 3/4) = 0.03162277660168379 * 3/4
    pytest.param("ntk_by_parts", CUT, [1.0, 0.31622776601683794, 0.0875, 0.023717082451262844], id="parts_ramp_cut"),
    # dim(32) = log10(0.0298) = -1.526, cut to 0; dim(1) = log10(0.955) = -0.020, ceil 0: a step after pair 0
    pytest.param("ntk_by_parts", {**PARTS, "factor": 2.0, "train_len": 6}, [1.0, 0.05, 0.005, 0.0005], id="parts_step"),
    # the ramp of parts_ramp_inside: 0.01 (1/2 + 1/2 * 1/8) = 0.005625 and 0.001 / 8
    pytest.param("yarn", {"head_dim": 8, "factor": 8.0, "train_len": 2048}, [1.0, 0.1, 0.005625, 0.000125], id="yarn"),
    # RoPE's 1, 1/10, 1/100, 1/1000; wavelengths in 2048 tokens: 325.9, 32.59, 3.259493234522016, 0.3259
    # smooth 1, 1, (3.259493234522016 - 1) / 3 = 0.753164411507339, 0; (1 - smooth) / 8 + smooth = 0.784018860068921
    pytest.param("llama3", {**LLAMA, "train_len": 2048}, [1.0, 0.1, 0.00784018860068921, 0.000125], id="llama_3.1"),
    # 1 / sqrt(500000) = 1 / 707.10678118654752
    pytest.param("abf", {"head_dim": 4, "theta": None}, [1.0, 0.0014142135623730950], id="abf_default"),
    # 1 / sqrt(250000) = 1/500
    pytest.param("abf", {"head_dim": 4, "theta": 250000.0}, [1.0, 0.002], id="abf_base_250000"),
]


@pytest.mark.parametrize(("method", "parameters", "expected"), CASES)
def test_inverse_frequencies_by_hand(method, parameters, expected):
    built = frequencies(method, **{"theta": 10000.0, **parameters})
    assert method != "abf" or built.theta == built.config.theta == (parameters["theta"] or 500_000.0)
    assert built.inv_freq.dtype == torch.float64
    assert built.inv_freq.tolist() == pytest.approx(expected, rel=FLOAT64_TOL, abs=FLOAT64_TOL)


def test_the_bound_of_the_rotary_base():
    # 0.0424 * 4096^1.628 = 0.0424 * e^(1.628 * 8.317766) = 0.0424 * e^13.541323 = 32,232
    assert abs(longest_context(0.0424 * math.exp(1.628 * math.log(4096))) - 4096) <= 1
    assert base_warning(10_000, 2048) is None
    assert re.fullmatch("model.theta=10000: serves 1,995 tokens .* 32,232 would serve it", base_warning(10_000, 4096))
