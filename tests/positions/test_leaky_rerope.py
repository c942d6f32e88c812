import pytest
import torch

from lab.positions import distance

FLOAT64_TOL = 1e-15  # relative; a division and a sum in float64, each right to 1.1e-16


@pytest.mark.parametrize(
    ("window", "leak", "q_pos", "expected"),
    [
        # i = 8 .. 4: 4 + (i - 4) / 2
        pytest.param(4, 2.0, 8, [6.0, 5.5, 5.0, 4.5, 4.0, 3.0, 2.0, 1.0, 0.0], id="leak_2"),
        # i = 7 .. 3: 3 + (i - 3) / 4
        pytest.param(3, 4, 7, [4.0, 3.75, 3.5, 3.25, 3.0, 2.0, 1.0, 0.0], id="leak_4"),
        # i = 6 .. 1: 1 + (i - 1) / 2.5
        pytest.param(1, 2.5, 6, [3.0, 2.6, 2.2, 1.8, 1.4, 1.0, 0.0], id="leak_2.5"),
        # no window: i / 8
        pytest.param(0, 8.0, 4, [0.5, 0.375, 0.25, 0.125, 0.0], id="no_window"),
    ],
)
def test_rows_by_hand(window, leak, q_pos, expected):
    leaky = distance("leaky_rerope", window=window, leak=leak)
    row = leaky.rel_pos(torch.tensor([q_pos]), torch.arange(q_pos + 1))
    assert row[0].tolist() == pytest.approx(expected, rel=FLOAT64_TOL)
