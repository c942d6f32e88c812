import collections

import pytest

from tests.skip.draws import check_mean, check_shares, drawn, mean_of_pairs


def placements(n, target_len):
    """Count the outcomes of every first chunk and every skip, straight from the definition."""
    weights = collections.Counter()
    for first in range(1, (n + 1) // 2 + 1):
        for skip in range(target_len - n + 1):
            weights[(*range(first), *range(first + skip, n + skip))] += 1
    return weights


@pytest.mark.parametrize(
    ("n_tokens", "target_len", "weights"),
    [
        # n = 4: the first chunk has 1 or 2 tokens, (4 + 1) // 2 = 2; T = 5: the skip is 0 or 1, and 0 leaves no gap
        pytest.param(4, 5, {(0, 1, 2, 3): 2, (0, 2, 3, 4): 1, (0, 1, 3, 4): 1}, id="four_in_five"),
        # n = 3: the first chunk has 1 or 2 tokens; T = 5: the skip is 0, 1 or 2
        pytest.param(3, 5, {(0, 1, 2): 2, (0, 2, 3): 1, (0, 3, 4): 1, (0, 1, 3): 1, (0, 1, 4): 1}, id="three_in_five"),
        # n = 2: the first chunk has 1 token, (2 + 1) // 2 = 1
        pytest.param(2, 5, {(0, 1): 1, (0, 2): 1, (0, 3): 1, (0, 4): 1}, id="two_in_five"),
        pytest.param(1, 5, {(0,): 1}, id="one_token_has_no_second_chunk"),
        pytest.param(4, 4, {(0, 1, 2, 3): 1}, id="no_free_id"),
    ],
)
def test_every_outcome_by_hand_is_drawn_as_often_as_it_should(n_tokens, target_len, weights):
    check_shares(drawn("pose", n_tokens, target_len), weights)


@pytest.mark.parametrize(("n_tokens", "target_len"), [(5, 8), (6, 12), (7, 9), (2, 40)])
def test_equals_brute_force_over_first_chunks_and_skips(n_tokens, target_len):
    check_shares(drawn("pose", n_tokens, target_len), placements(n_tokens, target_len))


def test_mean_distance_is_that_of_theory():
    # pairs i < j stand j - i apart, (n + 1) / 3 in the mean; a (n - a) of the n (n - 1) / 2 pairs stand u further, and
    # u is (T - n) / 2 in the mean. n = 9, T = 21: a = 1 .. 5 parts 8, 14, 18, 20, 20 pairs, 16 of 36 in the mean:
    # 10 / 3 + 6 * 16 / 36 = 6
    check_mean([mean_of_pairs(ids) for ids in drawn("pose", 9, 21)], 6.0)
