"""Evidence by repetition and by induction against values worked by hand and a search by definition."""

import numpy as np
import pytest

from lab.evidence import methods
from lab.evidence.methods import Repeat, Suffix
from tests.evidence import brute
from tests.evidence.brute import IGNORE
from tests.evidence.packs import agreed

ids = pytest.mark.parametrize("largest", [3, 150_000], ids=["few_types", "ids_to_150000"])


def found(method, tokens, last):
    """Return the distances of one run whose last target is given."""
    targets = np.array([*tokens[1:], last])
    return method.distances(np.array(tokens), targets, [len(tokens)]).tolist()


def test_repeat_by_hand():
    blocks = Repeat(tokens=3)
    # places 0 1 2 3 4 5 6 7 8: the block 1 2 3 is 5 places later again, so its targets at places 5, 6 and 7 have d = 5
    assert found(blocks, [1, 2, 3, 7, 8, 1, 2, 3], 9) == [0, 0, 0, 0, 5, 5, 5, 0]
    # the last target ends a block too, and is left out where it is not scored
    assert found(blocks, [1, 2, 3, 7, 1, 2], 3) == [0, 0, 0, 4, 4, 4]
    assert found(blocks, [1, 2, 3, 7, 1, 2], IGNORE) == [0, 0, 0, 0, 0, 0]
    # the nearest of two copies; copies may overlap: 4 4 4 at places 0 .. 2 and 1 .. 3
    assert found(blocks, [1, 2, 3, 1, 2, 3, 5, 1, 2, 3], IGNORE) == [0, 0, 3, 3, 3, 0, 4, 4, 4, 0]
    assert found(blocks, [4, 4, 4, 4], IGNORE) == [1, 1, 1, 0]
    # blocks of two
    assert found(Repeat(tokens=2), [7, 8, 9, 7], 8) == [0, 0, 3, 3]


def test_suffix_by_hand():
    two = Suffix(least=2)
    # the last 3 has copies at 4 places (before it 2, but no 1) and at 7 (before it 1 2, and no more)
    assert found(two, [1, 2, 3, 4, 2, 3, 5, 1, 2], 3) == [0, 0, 0, 0, 0, 0, 0, 0, 7]
    # with one token: the 3 at place 5 follows a 2 as that at place 2 did, the 2 at place 8 a 1 as that at place 1
    assert found(Suffix(least=1), [1, 2, 3, 4, 2, 3, 5, 1, 2], 3) == [0, 0, 0, 0, 3, 0, 0, 7, 7]
    # among copies with equally long matches the nearest: 1 2 before 3 at places 2, 6 and 10
    assert found(two, [1, 2, 3, 9, 1, 2, 3, 8, 1, 2], 3) == [0, 0, 0, 0, 0, 4, 0, 0, 0, 4]
    # the longer match wins over the nearer copy: 7 1 2 before the 3 at places 3 and 11, 8 1 2 before that at 7
    assert found(two, [7, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2], 3) == [0, 0, 0, 0, 0, 0, 4, 0, 0, 8, 8]
    # copies may overlap; the match of the place before ends at the run's beginning
    assert found(two, [4, 4, 4, 4], IGNORE) == [0, 0, 1, 0]


@pytest.mark.parametrize("n", [2, 3, 5, 16])
@ids
def test_repeat_in_random_packs_equals_the_search_by_definition(n, largest):
    generator = np.random.default_rng(n)
    vocabulary = np.linspace(0, largest, 4).astype(np.int64)
    assert agreed(Repeat(tokens=n), lambda x, p: brute.repeat(x, p, n), generator, vocabulary) or n == 16


@pytest.mark.parametrize("longest", [2, 5, 64])
@pytest.mark.parametrize("least", [1, 2])
@ids
def test_suffix_in_random_packs_equals_the_search_by_definition(monkeypatch, least, longest, largest):
    monkeypatch.setattr(methods, "LONGEST", longest)
    generator = np.random.default_rng(least)
    vocabulary = np.linspace(0, largest, 3).astype(np.int64)
    assert agreed(Suffix(least=least), lambda x, p: brute.suffix(x, p, least, longest), generator, vocabulary) > 500
