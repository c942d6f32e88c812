"""Sentence selection: every outcome of small cases by hand."""

import numpy as np
import pytest

from lab.skip.sentences import draw_sentences
from tests.skip.draws import DRAWS, check_shares, rng

HAND = [
    # two of three sentences of two tokens fit into three: one whole, one cut to its first token
    pytest.param(
        [2, 2, 2], [1, 1, 1], 3, [(2, 1, 0), (2, 0, 1), (1, 2, 0), (0, 2, 1), (1, 0, 2), (0, 1, 2)], id="one_is_cut"
    ),
    pytest.param([2, 9, 2], [1, 0, 1], 3, [(2, 0, 1), (1, 0, 2)], id="a_removed_one_is_never_drawn"),
    pytest.param([5, 1], [1, 1], 2, [(2, 0), (1, 1)], id="one_longer_than_the_budget_is_cut"),
    pytest.param([2, 3, 4], [1, 0, 1], 6, [(2, 0, 4)], id="all_fit_exactly"),
    pytest.param([2, 3, 4], [1, 0, 1], 60, [(2, 0, 4)], id="fewer_remain_than_the_budget"),
    pytest.param([3], [1], 1, [(1,)], id="one_sentence"),
]


@pytest.mark.parametrize(("lengths", "remaining", "budget", "expected"), HAND)
def test_every_draw_by_hand_is_equally_likely(lengths, remaining, budget, expected):
    generator, remains = rng(), np.array(remaining, dtype=bool)
    drawn = [draw_sentences(np.array(lengths), remains, budget, generator) for _ in range(DRAWS)]
    check_shares(drawn, dict.fromkeys(expected, 1))
