"""Relative positions of one query by hand, from key 0 on; test_distances.py compares with the equations at random."""

import pytest
import torch

from lab.positions import distance

FLOAT64_TOL = 1e-15  # relative; a division and a sum in float64, each right to 1.1e-16
K = 1024
CASES = [
    # arXiv:2410.18745, Figure 5: L = 9, S = 3; indices 6, 7, 8 are gone
    pytest.param("string", {"shift": 3, "window": 0}, 8, [5, 4, 3, 2, 1, 0, 2, 1, 0], id="string_figure_5"),
    # i = 8 .. 3 become i - 3 + 2, from 7 to W = 2
    pytest.param("string", {"shift": 3, "window": 2}, 8, [7, 6, 5, 4, 3, 2, 2, 1, 0], id="string_window_2"),
    # all but i = 0 are, i - 1
    pytest.param("string", {"shift": 1, "window": 0}, 8, [7, 6, 5, 4, 3, 2, 1, 0, 0], id="string_shift_1"),
    # arXiv:2410.18745, A.1: [86K + 127, ..., 129, 128, 42K - 1, ..., 1, 0] and [64K + 127, ..., 128, 64K - 1, ..., 0]
    *(
        pytest.param(
            "string", {"shift": shift}, 128 * K - 1, [*range(far + 127, 127, -1), *range(shift - 1, -1, -1)], id=name
        )
        for shift, far, name in ((42 * K, 86 * K, "string_a_third_of_128K"), (64 * K, 64 * K, "string_half_of_128K"))
    ),
    # i >= 4: 8 // 2 - n // 2 + 4 - 2 = 6 - n // 2 for n = 0 .. 4; then 3 2 1 0
    pytest.param("self_extend", {"group": 2, "window": 4}, 8, [6, 6, 5, 5, 4, 3, 2, 1, 0], id="self_extend_2"),
    # the group does not divide the window: w - floor(4 / 3) = 3; 10 // 3 - n // 3 + 3 = 6 - n // 3 for n = 0 .. 6
    pytest.param("self_extend", {"group": 3, "window": 4}, 10, [6, 6, 6, 5, 5, 5, 4, 3, 2, 1, 0], id="self_extend_3"),
    pytest.param("rerope", {"window": 4}, 8, [4, 4, 4, 4, 4, 3, 2, 1, 0], id="rerope_window_4"),
    # i = 8 .. 4: 4 + (i - 4) / 2
    pytest.param(
        "leaky_rerope", {"window": 4, "leak": 2.0}, 8, [6.0, 5.5, 5.0, 4.5, 4.0, 3.0, 2.0, 1.0, 0.0], id="leak_2"
    ),
]


@pytest.mark.parametrize(("method", "parameters", "q_pos", "expected"), CASES)
def test_rows_by_hand(method, parameters, q_pos, expected):
    row = distance(method, **parameters).rel_pos(torch.tensor([q_pos]), torch.arange(q_pos + 1))
    assert row[0].tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
