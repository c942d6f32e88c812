"""Evidence by repetition against values worked by hand and a search by definition."""

import numpy as np
import pytest

from lab.evidence.repeat import Repeat
from tests.evidence import brute
from tests.evidence.packs import agreed

IGNORE = -100


def found(tokens, last, n=3):
    """Return the distances of one run whose last target is given."""
    targets = np.array([*tokens[1:], last])
    return Repeat(tokens=n).distances(np.array(tokens), targets, [len(tokens)]).tolist()


def test_worked_by_hand():
    # places 0 1 2 3 4 5 6 7 8: the block 1 2 3 is 5 places later again, so its targets at places 5, 6 and 7 have d = 5
    assert found([1, 2, 3, 7, 8, 1, 2, 3], 9) == [0, 0, 0, 0, 5, 5, 5, 0]
    # the last target ends a block too, and is left out where it is not scored
    assert found([1, 2, 3, 7, 1, 2], 3) == [0, 0, 0, 4, 4, 4]
    assert found([1, 2, 3, 7, 1, 2], IGNORE) == [0, 0, 0, 0, 0, 0]
    # the nearest of two copies; copies may overlap: 4 4 4 at places 0 .. 2 and 1 .. 3
    assert found([1, 2, 3, 1, 2, 3, 5, 1, 2, 3], IGNORE) == [0, 0, 3, 3, 3, 0, 4, 4, 4, 0]
    assert found([4, 4, 4, 4], IGNORE) == [1, 1, 1, 0]
    # blocks of two
    assert found([7, 8, 9, 7], 8, n=2) == [0, 0, 3, 3]


@pytest.mark.parametrize("n", [2, 3, 5, 16])
@pytest.mark.parametrize("largest", [3, 150_000], ids=["few_types", "ids_to_150000"])
def test_random_packs_equal_the_search_by_definition(n, largest):
    generator = np.random.default_rng(n)
    vocabulary = np.linspace(0, largest, 4).astype(np.int64)
    some = agreed(Repeat(tokens=n), lambda x, p: brute.repeat(x, p, n), generator, vocabulary)
    assert some or n == 16
