"""Random packs: runs with some targets that are not scored, and padding."""

import numpy as np

from tests.evidence import brute
from tests.evidence.brute import IGNORE


def pack_of(generator, vocabulary, padding=5):
    """Draw a pack."""
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
