import itertools

import pytest

from tests.skip.draws import check_shares, drawn


@pytest.mark.parametrize(
    ("n_tokens", "target_len", "outcomes"),
    [
        pytest.param(1, 3, [(0,), (1,), (2,)], id="one_token"),
        pytest.param(2, 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], id="two_in_four"),
        pytest.param(3, 4, [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)], id="three_in_four"),
        pytest.param(4, 4, [(0, 1, 2, 3)], id="no_free_id"),
        pytest.param(3, 6, [*itertools.combinations(range(6), 3)], id="every_set_of_three_in_six"),
    ],
)
def test_every_set_of_ids_is_equally_likely(n_tokens, target_len, outcomes):
    check_shares(drawn("rpes", n_tokens, target_len), dict.fromkeys(outcomes, 1))
