"""Relative positions of one query by hand, from key 0 on; test_distances.py compares with the equations at random."""

import math

import pytest
import torch

from lab.positions import distance

FLOAT64_TOL = 1e-15  # relative; a division and a sum in float64, each right to 1.1e-16
K, DCA = 1024, {"train_len": 10, "chunk": 6}
CASES = [
    # arXiv:2410.18745, Figure 5: L = 9, S = 3; indices 6, 7, 8 are gone
    pytest.param("string", {"shift": 3, "window": 0}, 8, [5, 4, 3, 2, 1, 0, 2, 1, 0], id="string_figure_5"),
    # i = 8 .. 3 become i - 3 + 2, from 7 to W = 2
    pytest.param("string", {"shift": 3, "window": 2}, 8, [7, 6, 5, 4, 3, 2, 2, 1, 0], id="string_window_2"),
    # arXiv:2410.18745, A.1: [86K + 127, ..., 129, 128, 42K - 1, ..., 1, 0]
    pytest.param("string", {"shift": 42 * K}, 128 * K - 1, [*range(86 * K + 127, 127, -1), *range(42 * K - 1, -1, -1)]),
    # arXiv:2402.17463, Figure 2 (a) and (b): 9 - (0 .. 5) for every other chunk, or nothing
    pytest.param("dca", {**DCA, "parts": "intra_inter"}, 11, [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0], id="dca_inter_11"),
    pytest.param("dca", {**DCA, "parts": "intra_inter"}, 12, [9, 8, 7, 6, 5, 4] * 2 + [0], id="dca_inter_12"),
    pytest.param("dca", {**DCA, "parts": "intra"}, 11, [math.nan] * 6 + [5, 4, 3, 2, 1, 0], id="dca_intra_11"),
    pytest.param("dca", {**DCA, "parts": "intra"}, 12, [math.nan] * 12 + [0], id="dca_intra_12"),
    # section 3: w = 4; 6 - (0 .. 5), then the query at 0; 9, which is c - 1, and a query at 5
    pytest.param("dca", DCA, 6, [6, 5, 4, 3, 2, 1, 0], id="dca_6"),
    pytest.param("dca", DCA, 11, [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0], id="dca_11"),
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
    assert row[0].tolist() == pytest.approx(expected, rel=FLOAT64_TOL, nan_ok=True)


def test_defaults_of_dual_chunk_attention_are_the_papers():
    # 3 * 2048 / 4 and 2048 - 1536; 3 * 10 / 4 rounded down, 10 - 7
    for parameters, expected in (({"train_len": 2048}, (1536, 512)), ({"train_len": 10}, (7, 3)), (DCA, (6, 4))):
        built = distance("dca", **parameters)
        assert (built.s, built.w) == expected
    assert distance("dca", train_len=1).s == 1
