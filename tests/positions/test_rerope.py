import random

import pytest
import torch

from lab.positions import distance
from tests.positions.by_definition import causal_rows, check_by_definition, plain_rows
from tests.positions.faults import fault_of


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


@pytest.mark.parametrize("seed", range(20))
def test_equals_its_equation(seed):
    window = random.Random(seed).randint(0, 50)
    check_by_definition(distance("rerope", window=window), lambda m, n: min(m - n, window), seed)


@pytest.mark.parametrize(("window", "n_tokens"), [(33, 33), (33, 34), (100, 33), (0, 1)])
def test_is_plain_up_to_the_window(window, n_tokens):
    assert causal_rows(distance("rerope", window=window), n_tokens) == plain_rows(n_tokens)


@pytest.mark.parametrize("n_tokens", [1, 8, 9, 10, 40])
@pytest.mark.parametrize("window", [0, 1, 8])
def test_no_relative_position_exceeds_the_window(window, n_tokens):
    rows = causal_rows(distance("rerope", window=window), n_tokens)
    assert max(map(max, rows)) == min(window, n_tokens - 1)
    assert min(map(min, rows)) == 0


WINDOW = "Window w in tokens, the largest relative position; below the training length"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({}, "window: must be set; Rerope takes log_n, window", id="no_window"),
        pytest.param({"window": -1}, f"window=-1: must be >= 0; {WINDOW}", id="negative"),
        pytest.param({"window": 4.0}, f"window=4.0: must be a whole number; {WINDOW}", id="with_a_point"),
        pytest.param({"window": False}, f"window=False: must be a whole number; {WINDOW}", id="false"),
        pytest.param(
            {"window": 4, "leak": 2.0}, "leak=2.0: unknown parameter; Rerope takes only log_n, window", id="leak"
        ),
    ],
)
def test_wrong_parameters_are_refused_in_words(parameters, message):
    assert fault_of(distance, "rerope", **parameters) == message


CUT = "tokens, or none is cut (min(i, w) with w inside the training length); lower it"


@pytest.mark.parametrize(
    ("length", "faults"),
    [
        pytest.param(9, [f"window=9: must be < 8, the longest distance in 9 {CUT}"], id="the_window"),
        # the first key's distance is 9, which the window keeps
        pytest.param(10, [f"window=9: must be < 9, the longest distance in 10 {CUT}"], id="one_more"),
        pytest.param(11, [], id="two_more"),
    ],
)
def test_length_within_the_window_is_a_fault(length, faults):
    assert distance("rerope", window=9).config.length_faults(length) == faults
