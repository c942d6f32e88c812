"""Plans of ids with gaps, against ids laid out and pairs counted one by one, and programs solved by hand."""

import numpy as np
import pytest

from lab.errors import ConfigError
from lab.shape.config import Power, ShapeConfig
from lab.shape.gaps import ChunkLayout, layouts, nearest, plan_gaps, whole_draws
from lab.shape.profiles import length_frequency

PAIRS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])  # of segments of 1, 2 and 3 tokens at distances 1 and 2


def counted(ids, edges):
    """Count the pairs of ids by bins, one by one."""
    distances = [int(q - k) for n, q in enumerate(ids) for k in ids[:n]]
    return np.histogram(distances, edges)[0]


@pytest.mark.parametrize(("chunks", "first", "inner", "between"), [(1, 1, 0, 0), (2, 1, 0, 7), (5, 2, 3, 11)])
def test_the_pairs_of_a_layout(chunks, first, inner, between):
    layout, edges = ChunkLayout(chunks, first, inner, (between, between + 1)), np.array([1, 2, 3, 7, 20, 90])
    ids = layout.ids(23, np.random.default_rng(0))
    np.testing.assert_array_equal(layout.mean_pairs(23, edges), counted(ids, edges))
    wider = ChunkLayout(chunks, first, inner, (between, between + 4))  # each of its four values is counted
    each = [ChunkLayout(chunks, first, inner, (u, u + 1)).mean_pairs(23, edges) for u in range(between, between + 4)]
    np.testing.assert_allclose(wider.mean_pairs(23, edges), np.mean(each, axis=0))


def test_a_layout_by_hand():
    # 10 tokens in 4 chunks of 2, 3, 2 and 3; 1 id free inside groups, 5 between them
    layout = ChunkLayout(chunks=4, first=2, inner=1, between=(5, 6))
    starts, lengths = layout.starts(10, 5)
    assert lengths.tolist() == [2, 3, 2, 3]
    assert starts.tolist() == [0, 3, 11, 14]
    assert layout.ids(10, np.random.default_rng(0)).tolist() == [0, 1, 3, 4, 5, 11, 12, 14, 15, 16]


@pytest.mark.parametrize(("n_tokens", "target_len"), [(8, 9), (12, 40), (64, 65), (96, 240)])
def test_ids_of_every_layout_rise_from_0_and_stay_below_the_target_window(n_tokens, target_len):
    generator, options = np.random.default_rng(0), layouts(n_tokens, target_len)
    assert len(set(options)) == len(options)
    for layout in options:
        for _ in range(3):
            ids = layout.ids(n_tokens, generator)
            assert (len(ids), ids[0]) == (n_tokens, 0)
            assert (np.diff(ids) >= 1).all()
            assert len(np.flatnonzero(np.diff(ids) > 1)) <= layout.chunks - 1
    ends = {int(sum(place[-1] for place in o.starts(n_tokens, o.between[1] - 1))) for o in options}
    assert max(ends) == target_len


def test_a_profile_within_reach_is_met():
    # x2 (1, 0) + x3 (2, 1) has 1/4 of its pairs at distance 2 where x3 = (x2 + 3 x3) / 4, that is x2 = x3
    draws = nearest(PAIRS, np.array([0.75, 0.25]))
    np.testing.assert_allclose(draws / draws.sum(), [0, 0.5, 0.5], atol=1e-9)


def test_a_profile_out_of_reach_is_come_nearest_to():
    # no more than 1/3 of the pairs can stand at distance 2: all segments of 3 tokens
    draws = nearest(PAIRS, np.array([0.5, 0.5]))
    np.testing.assert_allclose(draws / draws.sum(), [0, 0, 1], atol=1e-9)


@pytest.mark.parametrize("cycle", [1, 7, 4096])
def test_whole_draws_lose_none_and_stay_within_one(cycle):
    draws = np.random.default_rng(cycle).random(9) * [1, 1, 0, 1, 1, 1, 1e-12, 1, 1]
    whole = whole_draws(draws, cycle)
    assert whole.sum() == cycle
    assert whole[2] == whole[6] == 0
    assert (np.abs(whole - draws / draws.sum() * cycle) < 1).all()


def test_a_target_out_of_reach_is_one_line():
    natural = length_frequency(np.bincount([8] * 50, minlength=65))
    config = ShapeConfig(target=Power(exponent=0), target_len=64)
    with pytest.raises(
        ConfigError, match=r"^shape\.target\.method=power: the plan comes within a total variation of 0\."
    ):
        plan_gaps(config, 4, natural)
