import pytest
import torch

from lab.positions import distance


@pytest.mark.parametrize(
    ("window", "q_pos", "expected"),
    [
        pytest.param(4, 8, [4, 4, 4, 4, 4, 3, 2, 1, 0], id="window_4"),
        pytest.param(1, 4, [1, 1, 1, 1, 0], id="window_1"),
        # every distance is 0: attention without order
        pytest.param(0, 3, [0, 0, 0, 0], id="window_0"),
        # the first key's distance 6 is the one beyond 5
        pytest.param(5, 6, [5, 5, 4, 3, 2, 1, 0], id="one_beyond"),
    ],
)
def test_rows_by_hand(window, q_pos, expected):
    rerope = distance("rerope", window=window)
    assert rerope.rel_pos(torch.tensor([q_pos]), torch.arange(q_pos + 1)).tolist() == [expected]
