import pytest

from tests.skip.draws import check_shares, drawn


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
