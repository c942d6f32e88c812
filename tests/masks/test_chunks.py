from collections import Counter

import numpy as np
import pytest

from lab.masks import interleave_chunks

CHI_SQUARE = 25.7  # 9 degrees of freedom are above it once in 440 draws; the seed is fixed
# documents, chunks, and the probability of each order
# - a b c in two chunks, a|bc or ab|c, each 1/2; d whole. Their three shuffles, each 1/3, put d first (1/3 for both cuts
#   together), last (1/3), or between the chunks (1/6 each).
# - documents of fewer tokens than chunks, a b and c d: the six ways of merging them, each as likely.
ORDERS = {
    "cuts_and_shuffles": (
        [0, 0, 0, 1],
        2,
        {(3, 0, 1, 2): 1 / 3, (0, 1, 2, 3): 1 / 3, (0, 3, 1, 2): 1 / 6, (0, 1, 3, 2): 1 / 6},
    ),
    "more_chunks_than_tokens": (
        [0, 0, 1, 1],
        5,
        dict.fromkeys([(0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (2, 0, 1, 3), (2, 0, 3, 1), (2, 3, 0, 1)], 1 / 6),
    ),
}


@pytest.mark.parametrize(("documents", "chunks", "expected"), ORDERS.values(), ids=ORDERS)
def test_every_cut_and_every_shuffle_is_equally_likely(documents, chunks, expected):
    rng, n = np.random.default_rng(1), 3000
    drawn = Counter(tuple(interleave_chunks(np.array(documents), chunks, rng).tolist()) for _ in range(n))
    assert set(drawn) <= set(expected)
    assert sum((drawn[way] - n * p) ** 2 / (n * p) for way, p in expected.items()) < CHI_SQUARE
