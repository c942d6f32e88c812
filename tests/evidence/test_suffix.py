"""Evidence by induction against values worked by hand and a search by definition."""

import numpy as np
import pytest

from lab.evidence import repeat
from lab.evidence.repeat import Suffix
from tests.evidence import brute
from tests.evidence.packs import agreed

IGNORE = -100


def found(tokens, last, least=2):
    """Return the distances of one run whose last target is given."""
    targets = np.array([*tokens[1:], last])
    return Suffix(least=least).distances(np.array(tokens), targets, [len(tokens)]).tolist()


def test_worked_by_hand():
    # the last 3 has copies at 4 places (before it 2, but no 1) and at 7 (before it 1 2, and no more)
    assert found([1, 2, 3, 4, 2, 3, 5, 1, 2], 3) == [0, 0, 0, 0, 0, 0, 0, 0, 7]
    # with one token: the 3 at place 5 follows a 2 as that at place 2 did, the 2 at place 8 a 1 as that at place 1
    assert found([1, 2, 3, 4, 2, 3, 5, 1, 2], 3, least=1) == [0, 0, 0, 0, 3, 0, 0, 7, 7]
    # among copies with equally long matches the nearest: 1 2 before 3 at places 2, 6 and 10
    assert found([1, 2, 3, 9, 1, 2, 3, 8, 1, 2], 3) == [0, 0, 0, 0, 0, 4, 0, 0, 0, 4]
    # the longer match wins over the nearer copy: 7 1 2 before the 3 at places 3 and 11, 8 1 2 before that at 7
    assert found([7, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2], 3) == [0, 0, 0, 0, 0, 0, 4, 0, 0, 8, 8]
    # copies may overlap; the match of the place before ends at the run's beginning
    assert found([4, 4, 4, 4], IGNORE) == [0, 0, 1, 0]


@pytest.mark.parametrize("longest", [2, 5, 64])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("largest", [2, 150_000], ids=["few_types", "ids_to_150000"])
def test_random_packs_equal_the_search_by_definition(monkeypatch, least, longest, largest):
    monkeypatch.setattr(repeat, "LONGEST", longest)
    generator = np.random.default_rng(least)
    vocabulary = np.linspace(0, largest, 3).astype(np.int64)
    some = agreed(Suffix(least=least), lambda x, p: brute.suffix(x, p, least, longest), generator, vocabulary)
    assert some > 500
