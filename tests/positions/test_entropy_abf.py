import pytest
import torch

from lab.positions import frequencies

FLOAT64_TOL = 1e-14  # a power or a quotient of logarithms in float64, right to some units of 1e-16


@pytest.mark.parametrize(
    ("train_len", "q_pos", "expected"),
    [
        # the query at 255 sees 256 = 16^2 tokens, the one at 63 sees 64 = 16^(3/2), at 4095 16^3
        pytest.param(16, [63, 255, 4095], [1.5, 2.0, 3.0], id="powers_of_16"),
        # 10^2, 10^3
        pytest.param(10, [99, 999], [2.0, 3.0], id="powers_of_10"),
        # 2^14 tokens against 2^12, and 2^17
        pytest.param(4096, [16383, 131071], [14 / 12, 17 / 12], id="llama_2_at_16K_and_128K"),
        # what training has seen is left alone, the L-th token included: ln(p + 1) <= ln L
        pytest.param(4096, [0, 1, 2047, 4095], [1.0, 1.0, 1.0, 1.0], id="within_training"),
        # one more: ln 17 / ln 16 = 2.8332133440562161 / 2.7725887222397812 = 1.0218657103125849
        pytest.param(16, [15, 16], [1.0, 1.0218657103125849], id="first_beyond_training"),
    ],
)
@pytest.mark.parametrize("layer", [2, 3, 31])
def test_logit_factor_by_hand(train_len, q_pos, expected, layer):
    built = frequencies("entropy_abf", head_dim=8, train_len=train_len)
    factor = built.logit_factor(torch.tensor(q_pos), layer)
    assert factor.dtype == torch.float64
    assert factor.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
