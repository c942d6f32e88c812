import pytest
import torch

from lab.positions import distance

FLOAT64_TOL = 1e-14  # two logarithms and a square in float64, right to some units of 1e-16
K = 1024


@pytest.mark.parametrize(
    ("shift", "window", "expected"),
    [
        # arXiv:2410.18745, Figure 5: L = 9, S = 3; indices 6, 7, 8 are gone
        pytest.param(3, 0, [5, 4, 3, 2, 1, 0, 2, 1, 0], id="figure_5"),
        # i = 8 .. 3 become i - 3 + 2, from 7 to W = 2
        pytest.param(3, 2, [7, 6, 5, 4, 3, 2, 2, 1, 0], id="window_2"),
        # only i = 8 is at S: 8 - 8 + 1
        pytest.param(8, 1, [1, 7, 6, 5, 4, 3, 2, 1, 0], id="shift_of_the_length_less_one"),
        # no distance is at S
        pytest.param(9, 1, [8, 7, 6, 5, 4, 3, 2, 1, 0], id="shift_of_the_length"),
        # all but i = 0 are, i - 1
        pytest.param(1, 0, [7, 6, 5, 4, 3, 2, 1, 0, 0], id="shift_1"),
    ],
)
def test_last_row_of_nine_tokens_by_hand(shift, window, expected):
    row = distance("string", shift=shift, window=window).rel_pos(torch.tensor([8]), torch.arange(9))
    assert row.tolist() == [expected]


@pytest.mark.parametrize(
    ("shift", "far"),
    # arXiv:2410.18745, A.1: [86K + 127, ..., 129, 128, 42K - 1, ..., 1, 0] and [64K + 127, ..., 128, 64K - 1, ..., 0]
    [pytest.param(42 * K, 86 * K, id="third"), pytest.param(64 * K, 64 * K, id="half")],
)
def test_last_row_of_llama_3_1_at_128K(shift, far):
    row = distance("string", shift=shift).rel_pos(torch.tensor([128 * K - 1]), torch.arange(128 * K))[0]
    assert row.tolist() == [*range(far + 127, 127, -1), *range(shift - 1, -1, -1)]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, [1.0, 1.0, 1.0], id="off"),
        # ln 2 = 0.69314718055994531, (1.069314718055994531)^2 = 1.14343396625117107
        pytest.param({"released_scaling": True}, [1.1434339662511711] * 3, id="released"),
        # the queries at 63 and 255 see 16^(3/2) and 16^2 tokens
        pytest.param({"log_n": 16}, [1.0, 1.5, 2.0], id="log_n"),
        # 1.5 and 2 times the square above
        pytest.param(
            {"log_n": 16, "released_scaling": True},
            [1.1434339662511711, 1.7151509493767566, 2.2868679325023421],
            id="both",
        ),
    ],
)
def test_logit_factor_by_hand(parameters, expected):
    string = distance("string", shift=200, **parameters)
    assert string.logit_factor(torch.tensor([7, 63, 255])).tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
    assert string.scales_logits == bool(parameters)
