"""Targets by visible context, against a loop over the places of every row, and against the position frequency."""

import itertools

import numpy as np
import pytest

from lab.counts import PositionCounts, targets_by_context, visible_context
from lab.data.module import to_batch
from lab.data.segments import index_segments
from tests.data.stores import drawn_lengths, make_store, stream_over
from tests.data.windows import (
    IGNORE,
    MASKS_AND_CHUNKS,
    documents_of,
    drawn_row,
)

WINDOW, SEED = 20, 3
LENGTHS = drawn_lengths(2, 60, 15)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents that begin with BOS, and their store."""
    documents = documents_of(LENGTHS, bos=True)
    return documents, make_store(tmp_path_factory.mktemp("store"), [documents[:25], documents[25:]])


def packs_of(store, segments, n, **settings):
    return list(itertools.islice(stream_over(store, segments, seed=SEED, **settings), n))


def supervised(packs, size=WINDOW):
    counts = PositionCounts(size)
    for pack in packs:
        counts.add_targets(to_batch(pack)["supervised"])
    return counts


def test_unscored_targets_and_weights_by_hand():
    # of contexts 0 1 2 | 0 1 the second and the last have no target, nor have two padding tokens
    scored = np.array([True, False, True, True, False, False, False])
    counts = PositionCounts(4, weights=np.array([0.25, 9, 1.5, 9]))
    counts.add_targets(targets_by_context([3, 2], None, scored))
    assert counts.supervised.tolist() == [2, 0, 1, 0]
    assert counts.supervised_f().tolist() == [2 * 0.25 + 1.5, 1.5, 1.5, 0]


@pytest.mark.parametrize("name", MASKS_AND_CHUNKS)
def test_packs_count_the_targets_of_their_windows(text, name):
    """A target's context is the number of earlier places that its row's mask shows, in the order trained."""
    (documents, store), arrangement = text, MASKS_AND_CHUNKS[name]
    segments = index_segments(store, "concatenated", WINDOW - arrangement.extra_tokens)
    expected, pairs = np.zeros(WINDOW, dtype=np.int64), 0
    for sample in range(9):
        row = drawn_row(documents, segments, sample, arrangement, seed=SEED, reset=name.startswith("reset"))
        for m, target in enumerate(row.targets):
            expected[sum(row.sees(m, n) for n in range(m))] += target != IGNORE
        pairs += len(row.pairs())
    packs = packs_of(store, segments, 3, pack_tokens=3 * WINDOW + 7, arrangement=arrangement, look_ahead=9)
    assert supervised(packs).supervised.tolist() == expected.tolist()
    contexts = [visible_context(pack.lengths, pack.anchors) for pack in packs]
    assert sum(int((c + 1).sum()) for c in contexts) == pairs
