"""Upsampling of long documents: weights by hand, copies and their order by brute force."""

import math

import numpy as np
import pytest

from lab.data.config import Upsample
from lab.data.upsampling import copies_of, draw_offsets, parted, spread, weigh


def test_weights_worked_by_hand():
    tokens = np.array([[600, 400], [900, 100], [500, 0], [0, 700], [200, 800]])
    weights, kept = weigh(tokens, Upsample(share=0.75))
    # 1000 tokens, 750 wanted of 400: 1.875; 250 of 600: 0.41667. 1000 tokens, 750 of 100: 7.5; 250 of 900: 0.27778
    expected = [[250 / 600, 1.875], [250 / 900, 7.5], [1, 1], [1, 1], [1, 1]]
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    assert kept == [None, None, "no long documents", "no short documents", "long enough already"]
    scaled, same = weigh(tokens, Upsample(share=0.75, tokens=2100))  # half of 4,200
    np.testing.assert_allclose(scaled, np.array(expected) / 2, rtol=1e-12)
    assert same == kept


def test_a_source_that_has_the_share_exactly_is_kept():
    assert weigh(np.array([[250, 750]]), Upsample(share=0.75))[1] == ["long enough already"]
    assert weigh(np.array([[251, 749]]), Upsample(share=0.75))[1] == [None]


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_those_of_a_running_sum_over_shards(seed):
    generator = np.random.default_rng(seed)
    weights, offsets = np.array([0.3, 2.4, 1.0, 7.25]), draw_offsets(4, seed)
    before = np.zeros(4, dtype=np.int64)
    running = offsets.tolist()  # of every class, over all shards
    for _ in range(3):
        n = int(generator.integers(5, 60))
        lengths, classes = generator.integers(1, 9, n), generator.integers(0, 4, n)
        got = copies_of(lengths, classes, before, weights, offsets)
        for one in sorted(range(n), key=lambda k: (lengths[k], k)):
            kind = classes[one]
            after = running[kind] + weights[kind]
            assert got[one] == math.floor(after + 1e-9) - math.floor(running[kind] + 1e-9)
            running[kind] = after
        before += np.bincount(classes, minlength=4)


def test_copies_fall_where_the_running_sum_reaches_a_whole_number():
    zeros = np.zeros(5, dtype=np.int64)
    lengths = np.array(
        [3, 1, 2, 5, 4]
    )  # k w + u by rising length: 0.4, 0.8, 1.2, 1.6, 2; after 5 earlier ones 2.4 to 4
    assert copies_of(lengths, zeros, np.array([0]), np.array([0.4]), np.array([0.0])).tolist() == [1, 0, 0, 1, 0]
    assert copies_of(lengths[:2], zeros[:2], np.array([0]), np.array([0.5]), np.array([0.0])).tolist() == [1, 0]


def test_a_class_is_off_by_less_than_a_copy_and_at_most_its_longest_document():
    generator = np.random.default_rng(5)
    for _ in range(300):
        lengths = np.exp(generator.normal(3, 1.5, int(generator.integers(1, 80)))).astype(int) + 1
        weight = float(generator.choice([0.1, 0.5, 0.9, 1.7, 6.3]))
        zeros = np.zeros(len(lengths), dtype=np.int64)
        copies = copies_of(lengths, zeros, np.array([0]), np.array([weight]), draw_offsets(1, int(lengths.sum())))
        assert abs(copies.sum() - weight * len(lengths)) < 1
        assert abs((copies * lengths).sum() - weight * lengths.sum()) <= lengths.max()
        assert set(copies.tolist()) <= {math.floor(weight), math.ceil(weight)}


def test_every_document_is_copied_as_often_as_its_weight_says_on_average():
    lengths, zeros, weight = np.array([5, 1, 9, 9, 2, 70]), np.zeros(6, dtype=np.int64), np.array([1.3])
    draws = [copies_of(lengths, zeros, np.array([4]), weight, draw_offsets(1, seed)) for seed in range(4000)]
    # each is 1 or 2 with standard deviation sqrt(0.3 * 0.7) = 0.46, of the mean over 4,000 draws 0.0072
    np.testing.assert_allclose(np.mean(draws, axis=0), 1.3, atol=4 * 0.0072)


def test_offsets_cover_the_unit_interval_and_differ():
    offsets = draw_offsets(2000, 3)
    assert 0 <= offsets.min() < 0.01
    assert 0.99 < offsets.max() < 1
    assert len(set(offsets.tolist())) > 1900
    assert (draw_offsets(2000, 3) == offsets).all()
    assert (draw_offsets(2000, 4) != offsets).any()


def test_spreading_lays_copies_an_equal_way_apart_and_mixes_lengths():
    copies = np.array([0, 1] * 200 + [5] * 20)
    order = spread(copies, np.random.default_rng(0))
    assert (np.bincount(order, minlength=420) == copies).all()
    for document in range(400, 420):
        places = np.flatnonzero(order == document)
        assert np.abs(np.diff(places) - 300 / 5).max() < 20, "300 copies in all, 5 of this one"
    halves = [np.isin(part, range(400, 420)).sum() for part in (order[:150], order[150:])]
    assert abs(halves[0] - halves[1]) <= 20
    assert (order != spread(copies, np.random.default_rng(1))).any()


def test_no_copy_stands_beside_another_where_that_can_be():
    generator = np.random.default_rng(2)
    for _ in range(400):
        copies = generator.integers(0, 4, int(generator.integers(3, 12)))
        largest = copies.max(initial=0)
        order = spread(copies, generator)
        assert (np.bincount(order, minlength=len(copies)) == copies).all()
        if 2 * largest <= copies.sum() - 2:
            assert (order[1:] != order[:-1]).all(), order


@pytest.mark.parametrize(
    "order", [[], [3], [3, 3], [3, 3, 3], [1, 1, 2, 2], [2, 1, 1, 1, 3, 4, 5], [1, 2, 3, 3, 3, 4], [5, 1, 1, 2, 1]]
)
def test_parting_keeps_every_copy(order):
    got = parted(np.array(order, dtype=np.int64))
    assert sorted(got.tolist()) == sorted(order)
    possible = all(2 * order.count(k) <= len(order) + 1 for k in order)
    assert not possible or (got[1:] != got[:-1]).all(), got
