"""Which targets lose their loss: by hand, and over many draws."""

import numpy as np
import pytest

from lab.core.errors import ConfigError
from lab.evidence.weights import ByEvidence
from tests.refusals import refused

DISTANCES = np.array([0, 2, 3, 1, 0, 3, 9, 5, 40])
SCORED = np.array([True, True, True, True, True, True, True, False, True])


def dropped(seed=0, distances=DISTANCES, scored=SCORED, **settings):
    return ByEvidence(**settings).dropped(distances, scored, np.random.default_rng(seed))


def test_those_outside_are_dropped_without_those_that_have_no_evidence_or_score():
    assert np.flatnonzero(dropped(keep=((0, 2),))).tolist() == [2, 5, 6, 8]
    assert np.flatnonzero(dropped(keep=((0, 2), (9, 9)))).tolist() == [2, 5, 8]
    assert np.flatnonzero(dropped(keep=((2, 3), (9, 40)))).tolist() == [3]


@pytest.mark.parametrize(
    ("control", "eligible"), [("near", [1, 3]), ("random", [0, 1, 2, 3, 4, 5, 6, 8])], ids=["near", "random"]
)
def test_a_control_drops_as_many_of_those_that_it_may(control, eligible):
    often = np.zeros(len(DISTANCES))
    for seed in range(400):
        chosen = dropped(seed, keep=((0, 2), (5, 9)), control=control)
        assert chosen.sum() == min(3, len(eligible)), "3 are outside: at distances 3, 3 and 40"
        often += chosen
    assert set(np.flatnonzero(often)) == set(eligible)
    share = often[eligible] / often.sum()  # each as often as the others, within four standard errors
    assert np.abs(share - 1 / len(eligible)).max() < 4 / np.sqrt(often.sum())


@pytest.mark.parametrize("control", ["none", "random"])
def test_a_fraction_of_those_outside(control):
    distances, scored = np.tile([0, 1, 50, 60], 2500), np.ones(10_000, dtype=bool)
    chosen = dropped(3, distances, scored, keep=((0, 9),), fraction=0.25, control=control)
    assert abs(chosen.sum() - 1250) < 4 * np.sqrt(5000 * 0.25 * 0.75)
    same = dropped(3, distances, scored, keep=((0, 9),), fraction=0.25)
    assert chosen.sum() == same.sum(), "a control drops as many as would have been dropped"


@pytest.mark.parametrize("keep", [(), ((5, 2),), ((-1, 2),), ((0, 9), (9, 20))], ids=str)
def test_intervals_that_are_empty_fall_or_overlap_are_refused(keep):
    with refused("keep=", error=ConfigError):
        ByEvidence(keep=keep)


def test_a_control_without_nearer_targets_is_refused():
    with refused("control=near", error=ConfigError):
        ByEvidence(keep=((0, 0),), control="near")
