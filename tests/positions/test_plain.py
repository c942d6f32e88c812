import pytest
import torch

from lab.positions import distance


@pytest.mark.parametrize(
    ("q_pos", "k_pos", "expected"),
    [
        # row m, column n: m - n
        pytest.param([0, 1, 2], [0, 1, 2], [[0, -1, -2], [1, 0, -1], [2, 1, 0]], id="square"),
        pytest.param([7], [3, 5, 7], [[4, 2, 0]], id="one_query_gapped_keys"),
        pytest.param([0], [0], [[0]], id="one_token"),
        # the last row of a window of 2048 sees its first key at 2047
        pytest.param([2046, 2047], [0, 2047], [[2046, -1], [2047, 0]], id="window_edge"),
        # beyond 2^31, where 32-bit ids would wrap: 2^40 - 1 = 1099511627775
        pytest.param([2**40], [1, 2**40 - 3], [[1099511627775, 3]], id="beyond_int32"),
    ],
)
def test_relative_positions_by_hand(q_pos, k_pos, expected):
    rel = distance("plain").rel_pos(torch.tensor(q_pos), torch.tensor(k_pos))
    assert rel.dtype == torch.float64
    assert rel.tolist() == expected


def test_no_query_and_no_key_give_empty_matrices():
    none, some = torch.zeros(0, dtype=torch.int64), torch.arange(3)
    plain = distance("plain")
    assert plain.rel_pos(none, some).shape == (0, 3)
    assert plain.rel_pos(some, none).shape == (3, 0)
