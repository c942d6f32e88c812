import numpy as np

from lab.masks import Arrangement, Causal, Document
from tests.data.windows import IGNORE, cut


def test_masks_of_a_window_by_hand():
    # the documents 1 11 12 | 1 21 22 23 24 of <bos> 1, of which the window holds all but the last token
    window = cut([[1, 11, 12], [1, 21, 22, 23, 24]], 0, 7)
    assert window.tokens == [1, 11, 12, 1, 21, 22, 23]
    assert window.targets == [11, 12, IGNORE, 21, 22, 23, 24]
    arrays = [np.array(x, dtype=np.int64) for x in (window.tokens, window.targets, window.documents)]
    first, second = ([1, 11, 12], [11, 12, IGNORE]), ([1, 21, 22, 23], [21, 22, 23, 24])
    expected = {
        Causal(): [(window.tokens, window.targets, [0, 1, 2, 3, 4, 5, 6])],
        Document(): [(*first, [0, 1, 2]), (*second, [0, 1, 2, 3])],
        Document(ids="running"): [(*first, [0, 1, 2]), (*second, [3, 4, 5, 6])],
    }
    for mask, wanted in expected.items():
        runs = Arrangement(mask=mask).runs(*arrays, np.random.default_rng(5))
        assert all(x.dtype == np.int64 for run in runs for x in (run.tokens, run.targets, run.ids))
        assert [(run.tokens.tolist(), run.targets.tolist(), run.ids.tolist()) for run in runs] == wanted
        assert not any(run.anchored for run in runs)
