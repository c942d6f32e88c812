"""Evidence by repetition in random packs against a search by definition."""

import numpy as np
import pytest

from lab.evidence.methods import Repeat
from tests.evidence import brute
from tests.evidence.brute import IGNORE

ids = pytest.mark.parametrize("largest", [3, 150_000], ids=["few_types", "ids_to_150000"])


def pack_of(generator, vocabulary, padding=5):
    """Draw runs with some targets that are not scored, and padding."""
    lengths = generator.integers(1, 40, 12).tolist()
    n = sum(lengths)
    tokens = np.zeros(n + padding, dtype=np.int64)
    targets = np.full(n + padding, IGNORE)
    tokens[:n] = vocabulary[generator.integers(0, len(vocabulary), n)]
    targets[: n - 1] = tokens[1:n]
    ends = np.cumsum(lengths) - 1
    targets[ends] = np.where(generator.random(len(ends)) < 0.5, IGNORE, vocabulary[0])
    targets[np.flatnonzero(generator.random(n) < 0.1)] = IGNORE
    return tokens, targets, lengths


def agreed(method, search, generator, vocabulary):
    """Compare a method with the search by definition on ten packs, and count the scored targets with evidence."""
    some = 0
    for _ in range(10):
        tokens, targets, lengths = pack_of(generator, vocabulary)
        distances = method.distances(tokens, targets, lengths)
        indices, found = brute.expected(tokens, targets, lengths, search)
        assert distances[indices].tolist() == found
        assert not distances[sum(lengths) :].any()
        some += np.count_nonzero(distances[targets != IGNORE])
    return some


@pytest.mark.parametrize("n", [2, 3, 5, 16])
@ids
def test_repeat_in_random_packs_equals_the_search_by_definition(n, largest):
    generator = np.random.default_rng(n)
    vocabulary = np.linspace(0, largest, 4).astype(np.int64)
    assert agreed(Repeat(tokens=n), lambda x, p: brute.repeat(x, p, n), generator, vocabulary) or n == 16
