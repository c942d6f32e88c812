import numpy as np
import pytest

from lab.model.prefixes import LEAST_SHARE, Group, sorted_groups


def begin_alike(rows):
    """Count by definition how many tokens some rows have in common at their beginning."""
    count = 0
    while count < rows.shape[1] and len({row[count] for row in rows.tolist()}) == 1:
        count += 1
    return count


@pytest.mark.parametrize("seed", range(40))
def test_groups_cover_all_rows_and_share_what_they_say(seed):
    generator = np.random.default_rng(seed)
    prompts = generator.integers(0, 2 + seed % 2, (1 + seed % 9, 1 + seed % 7))
    prompts[len(prompts) // 2 :, : generator.integers(0, prompts.shape[1] + 1)] = 0
    order, groups = sorted_groups(prompts)
    assert sorted(order) == list(range(len(prompts)))
    assert [a for group in groups for a in range(group.start, group.stop)] == list(range(len(prompts)))
    for start, stop, prefix in groups:
        rows = prompts[order[start:stop]]
        if prefix:
            assert stop - start > 1
            assert prefix == min(begin_alike(rows), prompts.shape[1] - 1)
            assert prefix >= LEAST_SHARE * prompts.shape[1]
    assert all(a.prefix or b.prefix for a, b in zip(groups, groups[1:])), "rows that share nothing lie together"


def test_a_row_that_would_shorten_the_prefix_too_much_begins_a_group_of_its_own():
    # rows 0 and 1 share 7 of 8 tokens: 7 saved; with row 2, which shares 2, it would be 2 * 2 = 4
    prompts = np.array([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 2], [1, 1, 2, 2, 2, 2, 2, 2]])
    assert sorted_groups(prompts) == ([0, 1, 2], [Group(0, 2, 7), Group(2, 3, 0)])
    # with a row that shares 4 it is 2 * 4 = 8
    prompts[2, 2:4] = 1
    assert sorted_groups(prompts)[1] == [Group(0, 3, 4)]


def test_numbers_beyond_a_byte_sort_beside_each_other():
    prompts = np.array([[300, 5, 1], [44, 5, 1], [300, 5, 2]])
    assert sorted_groups(prompts) == ([1, 0, 2], [Group(0, 1, 0), Group(1, 3, 2)])
