"""What holds for every frequency method, at ordinary and at extreme parameters."""

import pytest
import torch

from lab.positions import FREQUENCY_METHODS, frequencies

FLOAT64_TOL = 1e-13  # powers and blends in float64, right to some tens of units of 1e-16
CASES = {
    "rope": ("rope", {}),
    "pi": ("pi", {"factor": 4.0}),
    "pi_barely": ("pi", {"factor": 1.001}),
    "ntk": ("ntk", {"factor": 4.0}),
    "ntk_far": ("ntk", {"factor": 1000.0}),
    "dynamic_ntk": ("dynamic_ntk", {"factor": 4.0, "train_len": 2048, "length": 5000}),
    "dynamic_ntk_follows": ("dynamic_ntk", {"factor": 4.0, "train_len": 2048}),
    "ntk_by_parts": ("ntk_by_parts", {"factor": 4.0, "train_len": 2048}),
    "ntk_by_parts_between_pairs": ("ntk_by_parts", {"factor": 40.0, "train_len": 96, "truncate": False}),
    "yarn": ("yarn", {"factor": 8.0, "train_len": 8192}),
    "yarn_step": ("yarn", {"factor": 8.0, "train_len": 6}),
    "llama3": ("llama3", {"factor": 8.0, "train_len": 8192}),
    "llama3_narrow": ("llama3", {"factor": 32.0, "train_len": 64, "low_freq_factor": 1.0, "high_freq_factor": 1.5}),
    "abf": ("abf", {}),
    "entropy_abf": ("entropy_abf", {"train_len": 4096}),
}
SCALED = {"yarn", "yarn_step", "entropy_abf"}  # those with a factor on the logits
every = pytest.mark.parametrize(("method", "parameters"), CASES.values(), ids=CASES)
SIZES = [(4, 10000.0), (64, 10000.0), (128, 500000.0), (32, 100.0)]


def test_every_method_is_here():
    assert {method for method, _ in CASES.values()} == set(FREQUENCY_METHODS) - {"longrope"}  # of one head size each


@every
def test_pairs_turn_ever_slower_but_by_no_more_than_the_factor(method, parameters):
    factor = parameters.get("factor", 1.0)
    if "length" in parameters:  # the last pair of dynamic NTK is slowed by s l / L - (s - 1)
        factor = factor * parameters["length"] / parameters["train_len"] - (factor - 1)
    for head_dim, theta in SIZES:
        changed = frequencies(method, head_dim=head_dim, theta=theta, **parameters)
        inv_freq = changed.inv_freq
        assert (inv_freq.dtype, inv_freq.shape) == (torch.float64, (head_dim // 2,))
        assert 0 < float(inv_freq[-1]) < float(inv_freq[0]) <= 1
        assert (inv_freq.diff() < 0).all()
        slowed = frequencies("rope", head_dim=head_dim, theta=changed.theta).inv_freq / inv_freq
        assert float(slowed.min()) >= 1 - FLOAT64_TOL
        assert float(slowed.max()) <= factor * (1 + FLOAT64_TOL)


@pytest.mark.parametrize("name", CASES)
def test_logit_factor_has_the_shape_of_the_positions(name):
    method, parameters = CASES[name]
    built = frequencies(method, head_dim=8, **parameters)
    assert built.scales_logits == (name in SCALED)
    for q_pos in (torch.tensor(ids, dtype=torch.int64) for ids in ([5], [], [0, 1, 100_000], [[0, 1], [4, 5]])):
        for layer in (0, 7):
            factor = built.logit_factor(q_pos, layer)
            assert (factor.dtype, factor.shape) == (torch.float64, q_pos.shape)
            assert name in SCALED or (factor == 1.0).all()


@pytest.mark.parametrize("name", CASES)
def test_base_is_the_methods_own_and_only_dynamic_ntk_follows_the_length(name):
    method, parameters = CASES[name]
    built = frequencies(method, head_dim=8, **parameters)
    assert built.is_dynamic == (name == "dynamic_ntk_follows")
    assert (built.at_length(9000) is built) == (name != "dynamic_ntk_follows")
    assert built.theta == (500_000.0 if "abf" in name else 10_000.0)
    assert frequencies(method, head_dim=8, theta=777.0, **parameters).theta == 777.0
