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
def test_factor_by_hand(method):
    for log_n, q_pos, expected in (
        # within L tokens; 64 = 16^(3/2), 256 = 16^2; ln 17 / ln 16 = 2.8332133440562161 / 2.7725887222397812
        (16, [0, 1, 14, 15, 63, 255, 16], [1.0, 1.0, 1.0, 1.0, 1.5, 2.0, 1.0218657103125849]),
        (10, [99, 999], [2.0, 3.0]),  # 10^2, 10^3
        (2, [1, 2**20 - 1], [1.0, 20.0]),  # the least L: ln 2^20 / ln 2
    ):
        built = distance(method, log_n=log_n, **OWN[method])
        factor = built.logit_factor(torch.tensor(q_pos))
        assert built.scales_logits
        assert factor.dtype == torch.float64
        assert factor.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)


@every
def test_factor_is_exactly_one_up_to_the_trained_length(method):
    for log_n in (2, 3, 100, 2048):
        factor = distance(method, log_n=log_n, **OWN[method]).logit_factor(torch.arange(3 * log_n))
        assert (factor[:log_n] == 1.0).all()
        assert (factor[log_n:] > 1.0).all()


@every
def test_left_out_there_is_no_factor_and_given_it_changes_no_position(method):
    built, ids = distance(method, **OWN[method]), torch.arange(40)
    assert not built.scales_logits
    for q_pos in (torch.tensor(ids, dtype=torch.int64) for ids in ([5], [], [[0, 1], [4, 100_000]])):
        factor = built.logit_factor(q_pos)
        assert (factor.dtype, factor.shape) == (torch.float64, q_pos.shape)
        assert (factor == 1.0).all()
    assert torch.equal(distance(method, log_n=8, **OWN[method]).rel_pos(ids, ids), built.rel_pos(ids, ids))
