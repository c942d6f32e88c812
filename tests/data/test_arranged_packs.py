"""Packs of arranged windows: their budget, ids, anchors and targets, and what decides what is drawn."""

import itertools

import numpy as np
import pytest

from lab.data.arrangement import Arrangement, interleaved
from lab.data.segments import index_segments
from tests.data.stores import drawn_lengths, make_store, stream_over
from tests.data.windows import (
    MASKS_AND_CHUNKS,
    cut,
    documents_of,
    located,
    row_of,
    runs_of,
    without_bos,
)

WINDOW, SEED = 16, 5  # tokens that a window takes of a pack, its anchor included
LENGTHS = drawn_lengths(4, 60, 9)
ARRANGEMENTS = {**MASKS_AND_CHUNKS, "eos_anchor": Arrangement(mask="anchor", running=True, anchor=2)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same documents without and with BOS, over two shards: their text, and a store of each."""
    out = {}
    for bos in (False, True):
        documents = documents_of(LENGTHS, bos)
        out[bos] = documents, make_store(tmp_path_factory.mktemp("store"), [documents[:25], documents[25:]])
    return out


def corpus_of(stores, arrangement):
    documents, store = stores[arrangement.bos is not None]
    return documents, store, index_segments(store, "concatenated", WINDOW - arrangement.extra_tokens)


def stream_of(stores, arrangement, stream=0, n_streams=1, **settings):
    _, store, segments = corpus_of(stores, arrangement)
    values = {"pack_tokens": 4 * WINDOW, "seed": SEED, "look_ahead": 1, "arrangement": arrangement, **settings}
    return stream_over(store, segments, stream=stream, n_streams=n_streams, **values)


def take(stream, n):
    return list(itertools.islice(stream, n))


def same(pack, other):
    keys = [
        (p.tokens.tolist(), p.targets.tolist(), p.lengths, p.stream, p.state.tolist(), p.anchors) for p in (pack, other)
    ]
    ids = [None if p.position_ids is None else p.position_ids.tolist() for p in (pack, other)]
    return keys[0] == keys[1] and ids[0] == ids[1]


def expected_row(documents, segments, arrangement, sample):
    """Lay the window of a sample out by definition."""
    segment = located(segments, sample, SEED)
    window = cut(documents, segment.start, segment.length)
    if arrangement.bos is not None:
        window = without_bos(window)
    order = None
    if arrangement.chunks is not None:
        generator = np.random.default_rng([SEED, sample])
        order = interleaved(np.array(window.documents), arrangement.chunks, generator).tolist()
    reset = arrangement.mask == "document" and not arrangement.running
    return row_of(window, arrangement.mask, reset=reset, order=order, anchor=arrangement.anchor)


# what packs hold


@pytest.mark.parametrize("n_streams", [1, 3])
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_a_pack_of_one_window_is_that_windows_row(stores, name, n_streams):
    """With nothing to choose from and room for one window, pack s of all streams in turn is global sample s."""
    arrangement = ARRANGEMENTS[name]
    documents, _, segments = corpus_of(stores, arrangement)
    streams = [stream_of(stores, arrangement, j, n_streams, pack_tokens=WINDOW) for j in range(n_streams)]
    for sample in range(segments.n + 9):  # some of the second epoch too
        pack = next(streams[sample % n_streams])
        row = expected_row(documents, segments, arrangement, sample)
        entries = [entry for run in runs_of(pack) for entry in zip(*run[:3], strict=True)]
        assert sorted(entries) == sorted(zip(row.tokens, row.targets, row.ids, strict=True))


# ids


# what decides what is drawn


@pytest.mark.parametrize("at", [1, 2, 9])
@pytest.mark.parametrize("name", ["causal_chunks", "running_chunks", "anchor", "anchor_chunks"])
def test_state_takes_an_arranged_stream_up_where_it_stood(stores, name, at):
    whole = take(stream_of(stores, ARRANGEMENTS[name], 1, 2, look_ahead=20), at + 12)
    state = whole[at - 1].state.tolist()
    resumed = stream_of(stores, ARRANGEMENTS[name], 1, 2, look_ahead=20, state=state)
    assert all(same(a, b) for a, b in zip(take(resumed, 12), whole[at:], strict=True))
