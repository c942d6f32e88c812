import numpy as np

from lab.masks import Arrangement, Causal, Document, TokenRun
from tests.data.windows import IGNORE, cut

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
