import pytest

from tests.skip.draws import check_shares, drawn

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


@pytest.mark.parametrize(("lengths", "target_len", "outcomes"), HAND)
def test_every_placement_by_hand_is_equally_likely(lengths, target_len, outcomes):
    check_shares(drawn("longrecipe", sum(lengths), target_len, lengths), dict.fromkeys(outcomes, 1))
