"""Profiles of the position frequency, against pairs counted one by one and values worked by hand."""

import numpy as np
import pytest

from lab.shape import ByContext, Plan, Power, bin_edges, profile_of, target_frequency

NATURAL = np.array([40.0, 16.0, 4.0, 1.0])  # f(0) .. f(3)
EDGES = np.array([1, 2, 3, 4])  # a bin for each distance


@pytest.mark.parametrize("window", [2, 3, 64, 65, 66, 1000, 2048])
def test_bins_hold_every_distance_once(window):
    edges = bin_edges(window)
    assert (edges[0], edges[-1]) == (1, window)
    assert (np.diff(edges) >= 1).all()
    assert len(edges) - 1 == min(64, window - 1)
    values = np.random.default_rng(0).random(window)
    sums = np.array([values[a:b].sum() for a, b in zip(edges, edges[1:])])
    np.testing.assert_allclose(profile_of(values, edges), sums / sums.sum())


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Power(exponent=1), [16 / 21, 4 / 21, 1 / 21]),
        (Power(exponent=0.5), [4 / 7, 2 / 7, 1 / 7]),  # square roots 4, 2, 1
        (Power(exponent=0), [1 / 3, 1 / 3, 1 / 3]),
        (Power(exponent=2), [256 / 273, 16 / 273, 1 / 273]),
    ],
    ids=["natural", "root", "power_0", "square"],
)
def test_targets_by_hand(target, expected):
    found = profile_of(target_frequency(ByContext(target=target), NATURAL), EDGES)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_total_variation_is_the_share_that_moves():
    none = np.zeros(0)
    for aimed, reached, moved in ([1, 0, 0], [0, 0, 1], 1), ([0.2, 0.3, 0.5], [0.3, 0.3, 0.4], 0.1):
        assert Plan(none, np.array(aimed), np.array(reached), none, 0, none).distance == pytest.approx(moved)
