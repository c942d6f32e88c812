"""Blocks of the window, worked by hand; what whole runs make of them is in tests/test_runs_by_definition.py."""

import numpy as np

from lab.data.arrangement import Arrangement
from lab.masks import Causal, Document
from tests.data.windows import IGNORE


def lengths_and_ids(block, mask=Causal()):
    """Arrange the window of lab/data/arrangement.py: documents of 4 and 3 tokens."""
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
