"""What strategies offer, against ids laid out and pairs counted one by one."""

import numpy as np
import pytest
from lab.shape.components import (
    Layout,
    choosing,
    layouts,
    length_classes,
    mean_pairs,
    packing,
    packing_lengths,
    pairs_of_chunks,
    pairs_of_lengths,
    skipping,
)

from lab.shape.config import Choose
from lab.shape.profiles import bin_edges


def counted(ids, edges):
    """Count the pairs of ids by bins, one by one."""
    distances = [int(q - k) for n, q in enumerate(ids) for k in ids[:n]]
    return np.histogram(distances, edges)[0]


@pytest.mark.parametrize("window", [5, 64, 100])
def test_pairs_of_a_length(window):
    edges = bin_edges(window)
    found = pairs_of_lengths(np.arange(window + 1), edges)
    assert found.shape == (window + 1, len(edges) - 1)
    for n in (0, 1, 2, window // 2, window - 1, window):
        np.testing.assert_array_equal(found[n], counted(np.arange(n), edges))


@pytest.mark.parametrize("seed", range(20))
def test_pairs_of_chunks(seed):
    generator = np.random.default_rng(seed)
    lengths, gaps = generator.integers(1, 9, 5), generator.integers(0, 7, 5)
    starts = np.cumsum(lengths + gaps) - lengths
    ids = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    edges = np.array([1, 2, 3, 7, 20, 90])
    np.testing.assert_array_equal(pairs_of_chunks(lengths, starts, edges), counted(ids, edges))


def test_a_layout_by_hand():
    # 10 tokens in 4 chunks of 2, 3, 2 and 3; 1 id free inside groups, 5 between them
    lengths, starts = Layout(chunks=4, first=2, inner=1, between=(5, 6)).starts(10, 5)
    assert lengths.tolist() == [2, 3, 2, 3]
    assert starts.tolist() == [0, 3, 11, 14]
    ids = Layout(chunks=4, first=2, inner=1, between=(5, 6)).ids(10, np.random.default_rng(0))
    assert ids.tolist() == [0, 1, 3, 4, 5, 11, 12, 14, 15, 16]


@pytest.mark.parametrize(("n_tokens", "target_len"), [(8, 9), (12, 40), (64, 65), (96, 240), (100, 1000)])
def test_ids_of_every_layout_rise_from_0_and_stay_below_the_target_window(n_tokens, target_len):
    generator = np.random.default_rng(0)
    longest = 0
    for layout in layouts(n_tokens, target_len):
        for _ in range(3):
            ids = layout.ids(n_tokens, generator)
            assert len(ids) == n_tokens
            assert ids[0] == 0
            assert (np.diff(ids) >= 1).all()
            longest = max(longest, int(ids[-1]))
            assert len(np.flatnonzero(np.diff(ids) > 1)) <= layout.chunks - 1
        _, starts = layout.starts(n_tokens, layout.between[1] - 1)
        last = starts[-1] + n_tokens - (layout.chunks - 1) * n_tokens // layout.chunks - 1
        assert last < target_len
    assert longest > n_tokens - 1


def test_layouts_are_distinct_and_reach_the_last_id():
    options = layouts(96, 240)
    assert len(set(options)) == len(options)
    ends = {int(o.starts(96, o.between[1] - 1)[1][-1]) + 96 - (o.chunks - 1) * 96 // o.chunks for o in options}
    assert max(ends) == 240


def test_the_mean_over_a_cell_is_near_that_of_the_ids_drawn():
    layout, edges = Layout(chunks=2, first=1, inner=0, between=(40, 56)), bin_edges(200)
    generator = np.random.default_rng(0)
    drawn = np.mean([counted(layout.ids(60, generator), edges) for _ in range(300)], axis=0)
    planned = mean_pairs(layout, 60, edges)
    assert planned.sum() == 60 * 59 / 2
    assert np.abs(planned - drawn).sum() / 2 < 0.03 * planned.sum()


def test_choosing_offers_the_mean_segment_of_each_class():
    lengths = np.random.default_rng(3).integers(1, 201, 900)
    counts, edges, classes = np.bincount(lengths, minlength=201), bin_edges(200), length_classes(200)
    offered = choosing(Choose(max_repeats=3.0), counts, edges)
    assert (classes[0], classes[-2], classes[-1]) == (1, 200, 201)
    for low, high, pairs, tokens, limit in zip(
        classes, classes[1:], offered.pairs, offered.tokens, offered.limits, strict=False
    ):
        own = lengths[(lengths >= low) & (lengths < high)]
        if not len(own):
            assert limit == 0
            continue
        np.testing.assert_allclose(pairs, np.mean([counted(np.arange(n), edges) for n in own], axis=0))
        assert tokens == pytest.approx(own.mean())
        assert limit == pytest.approx(3 * len(own) / lengths.sum())


def test_packing_and_skipping_offer_their_tokens():
    edges = bin_edges(100)
    packed = packing(100, edges)
    assert packed.tokens.tolist() == packing_lengths(100).tolist()
    assert packing_lengths(100)[-1] == 100
    skipped = skipping(layouts(30, 100), 30, edges)
    assert (skipped.tokens == 30).all()
    np.testing.assert_allclose(skipped.pairs.sum(1), 30 * 29 / 2)
