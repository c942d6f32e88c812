import pytest
import torch

from lab.positions import distance


@pytest.mark.parametrize(
    ("group", "window", "q_pos", "expected"),
    [
        # i >= 4: 8 // 2 - n // 2 + 4 - 2 = 6 - n // 2 for n = 0 .. 4; then 3 2 1 0
        pytest.param(2, 4, 8, [6, 6, 5, 5, 4, 3, 2, 1, 0], id="groups_of_2"),
        # the group does not divide the window: w - floor(4 / 3) = 3; 10 // 3 - n // 3 + 3 = 6 - n // 3 for n = 0 .. 6
        pytest.param(3, 4, 10, [6, 6, 6, 5, 5, 5, 4, 3, 2, 1, 0], id="groups_of_3"),
        # 9 // 4 - n // 4 + 1 - 0 = 3 - n // 4 for n = 0 .. 8; floor((9 - n) / 4) + 1 would be 3 3 2 2 2 2 1 1 1
        pytest.param(4, 1, 9, [3, 3, 3, 3, 2, 2, 2, 2, 1, 0], id="query_and_key_are_floored_apart"),
        # no window: 7 // 3 - n // 3 = 2 - n // 3
        pytest.param(3, 0, 7, [2, 2, 2, 1, 1, 1, 0, 0], id="no_window"),
        # all keys in one group: 5 // 9 - n // 9 + 2 - 0 = 2
        pytest.param(9, 2, 5, [2, 2, 2, 2, 1, 0], id="one_group"),
    ],
)
def test_rows_by_hand(group, window, q_pos, expected):
    extended = distance("self_extend", group=group, window=window)
    assert extended.rel_pos(torch.tensor([q_pos]), torch.arange(q_pos + 1)).tolist() == [expected]
