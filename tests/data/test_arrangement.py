from collections import Counter

import numpy as np
import pytest

from lab.masks import Arrangement, Causal, Document, TokenRun, interleave_chunks
from tests.data.windows import IGNORE, cut

CHI_SQUARE = 25.7  # 9 degrees of freedom are above it once in 440 draws; the seed is fixed
# By hand: the documents 1 11 12 | 1 21 22 23 24 of <bos> 1, of which the window holds all but the last token.
TEXT = [[1, 11, 12], [1, 21, 22, 23, 24]]


def arrange(mask, window):
    """Arrange a window of lists; the runs come back as lists, (tokens, targets, ids, anchored)."""
    arrays = [np.array(x, dtype=np.int64) for x in (window.tokens, window.targets, window.documents)]
    runs = Arrangement(mask=mask).runs(*arrays, np.random.default_rng(5))
    assert all(isinstance(run, TokenRun) for run in runs)
    assert all(x.dtype == np.int64 for run in runs for x in (run.tokens, run.targets, run.ids))
    return [(run.tokens.tolist(), run.targets.tolist(), run.ids.tolist(), run.anchored) for run in runs]


def test_masks_of_a_window_by_hand():
    window = cut(TEXT, 0, 7)
    assert window.tokens == [1, 11, 12, 1, 21, 22, 23]
    assert window.targets == [11, 12, IGNORE, 21, 22, 23, 24]
    first, second = ([1, 11, 12], [11, 12, IGNORE]), ([1, 21, 22, 23], [21, 22, 23, 24])
    assert arrange(Causal(), window) == [
        ([1, 11, 12, 1, 21, 22, 23], [11, 12, IGNORE, 21, 22, 23, 24], [0, 1, 2, 3, 4, 5, 6], False)
    ]
    assert arrange(Document(), window) == [(*first, [0, 1, 2], False), (*second, [0, 1, 2, 3], False)]
    assert arrange(Document(ids="running"), window) == [(*first, [0, 1, 2], False), (*second, [3, 4, 5, 6], False)]


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


def lengths_and_ids(block, mask=Causal()):
    """Arrange the window of lab/masks.py: documents of 4 and 3 tokens."""
    documents = np.array([0, 0, 0, 0, 1, 1, 1])
    tokens, targets = np.arange(10, 17), np.array([11, 12, 13, IGNORE, 15, 16, 17])
    runs = Arrangement(mask=mask).runs(tokens, targets, documents, np.random.default_rng(0), block)
    assert np.concatenate([run.tokens for run in runs]).tolist() == tokens.tolist()
    assert np.concatenate([run.targets for run in runs]).tolist() == targets.tolist()
    return [run.ids.tolist() for run in runs]


def test_blocks_by_hand():
    assert lengths_and_ids(3) == [[0, 1, 2], [0, 1, 2], [0]]
    assert lengths_and_ids(3, mask=Document()) == [[0, 1, 2], [0], [0, 1], [0]]
    assert lengths_and_ids(3, mask=Document(ids="running")) == [[0, 1, 2], [0], [0, 1], [0]]
    assert lengths_and_ids(7) == [[0, 1, 2, 3, 4, 5, 6]]
    assert lengths_and_ids(1) == [[0]] * 7
    assert lengths_and_ids(None, mask=Document(ids="running")) == [[0, 1, 2, 3], [4, 5, 6]]
