import itertools

import numpy as np
import pytest

from lab.skip import skip_positions
from lab.skip.longrecipe import flattened
from tests.skip.draws import check_mean, check_shares, drawn, mean_of_pairs, rng


def admissible(lengths, target_len):
    """List all rising ids from 0 on that break between sentences only, by trying every set of ids."""
    inside = set(range(1, sum(lengths))) - set(itertools.accumulate(lengths))
    return [
        ids
        for ids in itertools.combinations(range(target_len), sum(lengths))
        if ids[0] == 0 and all(ids[at] == ids[at - 1] + 1 for at in inside)
    ]


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


@pytest.mark.parametrize(("lengths", "target_len"), [([1, 1, 1], 6), ([2, 2], 9), ([1, 3, 1, 1], 9), ([4, 1, 2], 10)])
def test_every_admissible_placement_is_equally_likely(lengths, target_len):
    outcomes = admissible(lengths, target_len)
    check_shares(drawn("longrecipe", sum(lengths), target_len, lengths), dict.fromkeys(outcomes, 1))


@pytest.mark.parametrize(
    ("lengths", "slots", "expected"),
    [
        # abc in slot 0, 1 and 2 free, de in slot 3, 4 .. 6 free, f in slot 7
        pytest.param([3, 2, 1], [0, 3, 7], [0, 1, 2, 5, 6, 10], id="of_the_documentation"),
        pytest.param([3, 2, 1], [0, 1, 2], [0, 1, 2, 3, 4, 5], id="slots_in_a_row"),
        pytest.param([1, 1], [0, 5], [0, 5], id="single_tokens"),
        # the last of 12 - 6 + 3 = 9 slots ends at 11 = T - 1
        pytest.param([3, 2, 1], [0, 7, 8], [0, 1, 2, 9, 10, 11], id="to_the_end"),
    ],
)
def test_slots_are_flattened_by_hand(lengths, slots, expected):
    assert flattened(np.array(lengths), np.array(slots)).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_ids_break_between_sentences_only_and_begin_at_zero(seed):
    generator = rng(seed)
    lengths = generator.integers(1, 40, generator.integers(1, 30))
    n, ends = lengths.sum(), set(np.cumsum(lengths).tolist())
    ids = skip_positions("longrecipe", n, target_len=4 * n, sentence_lengths=lengths, generator=generator)
    assert ids[0] == 0
    assert {int(at) + 1 for at in np.flatnonzero(np.diff(ids) != 1)} <= ends


def test_mean_distance_is_that_of_theory():
    # lengths 2, 1, 2: the step between tokens 1 and 2 parts 2 * 3 = 6 of the 10 pairs, that between 2 and 3 as many:
    # (5 + 1) / 3 + 4 * 6 / 10 + 4 * 6 / 10 = 6.8
    check_mean([mean_of_pairs(ids) for ids in drawn("longrecipe", 5, 17, [2, 1, 2])], 6.8)
