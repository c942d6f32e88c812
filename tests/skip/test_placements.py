"""The ids of each skip method, and selected sentences, in small cases, of which every outcome is worked by hand."""

import itertools

import numpy as np
import pytest

from lab.data.selecting import draw_sentences
from tests.skip.draws import DRAWS, check_shares, drawn, rng

HAND = [
    # sentences a, bc, d in T = 6: 6 - 4 + 3 = 5 slots, two of 1 .. 4 beside slot 0
    pytest.param(
        [1, 2, 1],
        6,
        [
            (0, 1, 2, 3),  # slots 0 1 2    a b c d . .
            (0, 1, 2, 4),  #       0 1 3    a b c . d .
            (0, 1, 2, 5),  #       0 1 4    a b c . . d
            (0, 2, 3, 4),  #       0 2 3    a . b c d .
            (0, 2, 3, 5),  #       0 2 4    a . b c . d
            (0, 3, 4, 5),  #       0 3 4    a . . b c d
        ],
        id="one_two_one",
    ),
    # two sentences: the second after 0, 1, 2 or 3 free ids, each as likely; the released code would draw 3 most often
    pytest.param([2, 3], 8, [(0, 1, 2, 3, 4), (0, 1, 3, 4, 5), (0, 1, 4, 5, 6), (0, 1, 5, 6, 7)], id="two_sentences"),
    # a first sentence of one token stays at 0 and may stand alone
    pytest.param([1, 2], 4, [(0, 1, 2), (0, 2, 3)], id="first_sentence_of_one_token"),
    pytest.param([3], 9, [(0, 1, 2)], id="one_sentence"),
    pytest.param([1], 1, [(0,)], id="one_token"),
    pytest.param([2, 1, 3], 6, [(0, 1, 2, 3, 4, 5)], id="no_free_id"),
]


POSE = [
    # n = 4: the first chunk has 1 or 2 tokens, (4 + 1) // 2 = 2; T = 5: the skip is 0 or 1, and 0 leaves no gap
    pytest.param(4, 5, {(0, 1, 2, 3): 2, (0, 2, 3, 4): 1, (0, 1, 3, 4): 1}, id="four_in_five"),
    # n = 3: the first chunk has 1 or 2 tokens; T = 5: the skip is 0, 1 or 2
    pytest.param(3, 5, {(0, 1, 2): 2, (0, 2, 3): 1, (0, 3, 4): 1, (0, 1, 3): 1, (0, 1, 4): 1}, id="three_in_five"),
    # n = 2: the first chunk has 1 token, (2 + 1) // 2 = 1
    pytest.param(2, 5, {(0, 1): 1, (0, 2): 1, (0, 3): 1, (0, 4): 1}, id="two_in_five"),
    pytest.param(1, 5, {(0,): 1}, id="one_token_has_no_second_chunk"),
]
RPES = [(1, 3), (2, 4), (4, 4), (3, 6)]  # tokens, target length: every set of ids


@pytest.mark.parametrize(("lengths", "target_len", "outcomes"), HAND)
def test_sentences_are_placed_by_hand_each_way_as_likely(lengths, target_len, outcomes):
    check_shares(drawn("longrecipe", sum(lengths), target_len, lengths), dict.fromkeys(outcomes, 1))


@pytest.mark.parametrize(("n_tokens", "target_len", "weights"), POSE)
def test_chunks_are_placed_by_hand_as_often_as_they_should(n_tokens, target_len, weights):
    check_shares(drawn("pose", n_tokens, target_len), weights)


@pytest.mark.parametrize(("n_tokens", "target_len"), RPES)
def test_every_set_of_ids_is_equally_likely(n_tokens, target_len):
    sets = itertools.combinations(range(target_len), n_tokens)
    check_shares(drawn("rpes", n_tokens, target_len), dict.fromkeys(sets, 1))


SELECTED = [
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


@pytest.mark.parametrize(("lengths", "remaining", "budget", "expected"), SELECTED)
def test_every_draw_by_hand_is_equally_likely(lengths, remaining, budget, expected):
    generator, remains = rng(), np.array(remaining, dtype=bool)
    drawn = [draw_sentences(np.array(lengths), remains, budget, generator) for _ in range(DRAWS)]
    check_shares(drawn, dict.fromkeys(expected, 1))
