"""The log-n factor max(1, ln(q_pos + 1) / ln L), which every distance method takes beside its own parameters."""

import pytest
import torch

from lab.positions import DISTANCE_METHODS, distance

FLOAT64_TOL = 1e-14  # a quotient of logarithms in float64, right to some units of 1e-16
OWN = {
    "plain": {},
    "string": {"shift": 20, "window": 4},
    "dca": {"train_len": 20},
    "self_extend": {"group": 2, "window": 4},
    "rerope": {"window": 4},
    "leaky_rerope": {"window": 4, "leak": 2.0},
}
every = pytest.mark.parametrize("method", OWN)


def test_every_method_is_here():
    assert set(OWN) == set(DISTANCE_METHODS)


@every
@pytest.mark.parametrize(
    ("log_n", "q_pos", "expected"),
    [
        # 64 = 16^(3/2) and 256 = 16^2 tokens are seen
        pytest.param(16, [63, 255], [1.5, 2.0], id="powers_of_16"),
        # 10^2, 10^3
        pytest.param(10, [99, 999], [2.0, 3.0], id="powers_of_10"),
        # at most L tokens are seen
        pytest.param(16, [0, 1, 14, 15], [1.0, 1.0, 1.0, 1.0], id="within_training"),
        # ln 17 / ln 16 = 2.8332133440562161 / 2.7725887222397812
        pytest.param(16, [16], [1.0218657103125849], id="first_beyond_training"),
        # the least L: ln 2^20 / ln 2
        pytest.param(2, [1, 2**20 - 1], [1.0, 20.0], id="two"),
    ],
)
def test_factor_by_hand(method, log_n, q_pos, expected):
    built = distance(method, log_n=log_n, **OWN[method])
    factor = built.logit_factor(torch.tensor(q_pos))
    assert built.scales_logits
    assert factor.dtype == torch.float64
    assert factor.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)


@every
@pytest.mark.parametrize("log_n", [2, 3, 100, 2048])
def test_factor_is_exactly_one_up_to_the_trained_length(method, log_n):
    factor = distance(method, log_n=log_n, **OWN[method]).logit_factor(torch.arange(3 * log_n))
    assert (factor[:log_n] == 1.0).all()
    assert (factor[log_n:] > 1.0).all()


@every
@pytest.mark.parametrize("q_pos", [[5], [], [[0, 1], [4, 100_000]]], ids=["one", "none", "batch"])
def test_left_out_there_is_no_factor(method, q_pos):
    built = distance(method, **OWN[method])
    q_pos = torch.tensor(q_pos, dtype=torch.int64)
    factor = built.logit_factor(q_pos)
    assert not built.scales_logits
    assert factor.dtype == torch.float64
    assert factor.shape == q_pos.shape
    assert (factor == 1.0).all()


@every
def test_relative_positions_do_not_change(method):
    ids = torch.arange(40)
    with_factor, without = (distance(method, **rest, **OWN[method]) for rest in ({"log_n": 8}, {}))
    assert torch.equal(with_factor.rel_pos(ids, ids), without.rel_pos(ids, ids))
