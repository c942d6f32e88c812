import itertools
from collections import Counter

import numpy as np
import pytest

from lab.data.segments import index_segments
from tests.data.stores import drawn_lengths, make_store, numbered_documents, refused

WINDOW = 8


def shards_of(documents, sizes):
    """Deal documents out to shards of the given numbers of documents."""
    left = iter(documents)
    return [list(itertools.islice(left, size)) for size in sizes]


def cut(documents, window):
    """Cut documents every `window` tokens, by definition: (tokens, whether the document goes on)."""
    pieces = []
    for document in documents:
        for begin in range(0, len(document), window):
            pieces.append((document[begin : begin + window], begin + window < len(document)))
    return pieces


def read_segments(store, index):
    found = index.locate(np.arange(index.n))
    return found, [store.read(segment.start, segment.length).tolist() for segment in found]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        pytest.param([8], [1], id="exactly_a_window"),
        pytest.param([7, 9], [2], id="one_less_one_more"),
        pytest.param([1, 1, 1], [1, 2], id="one_token"),
        pytest.param([24, 17, 1, 8, 40], [2, 3], id="long_ones"),
        pytest.param(drawn_lengths(1, 60, 30), [10, 1, 0, 29, 20], id="many_over_shards"),
    ],
)
def test_natural_segments_are_documents_cut_at_the_window(tmp_path, lengths, sizes):
    documents = numbered_documents(lengths)
    store = make_store(tmp_path, shards_of(documents, sizes))
    segments, tokens = read_segments(store, index_segments(store, "natural", WINDOW))
    assert list(zip(tokens, [segment.continues for segment in segments], strict=True)) == cut(documents, WINDOW)
    owner = {token: k for k, document in enumerate(documents) for token in document}
    assert all(len({owner[token] for token in part}) == 1 for part in tokens), "a segment crosses documents"
    assert sorted(itertools.chain(*tokens)) == list(range(1, sum(lengths) + 1))


@pytest.mark.parametrize(("window", "blocks", "extra"), [(1, 5, 0), (2, 3, 1), (8, 1, 0), (8, 4, 35), (33, 3, 7)])
def test_uniform_segments_have_every_length_equally_often(tmp_path, window, blocks, extra):
    block = window * (window + 1) // 2
    total = blocks * block + extra
    flat = list(range(1, total + 1))
    documents = [flat[k : k + 11] for k in range(0, total, 11)]
    store = make_store(tmp_path, [documents[: len(documents) // 2], documents[len(documents) // 2 :]])
    segments, tokens = read_segments(store, index_segments(store, "uniform", window))
    assert list(itertools.chain(*tokens)) == flat[: blocks * block], "cut from the joined documents without a gap"
    assert Counter(map(len, tokens)) == dict.fromkeys(range(1, window + 1), blocks)
    for k in range(blocks):
        part = tokens[k * window : (k + 1) * window]
        assert sorted(map(len, part)) == list(range(1, window + 1)), "each block holds each length once"
    assert [s.continues for s in segments] == [s.start + s.length < total for s in segments]


@pytest.mark.parametrize(
    ("mode", "window", "has", "needs"),
    [
        # uniform needs a block of 8 * 9 / 2 = 36
        pytest.param("concatenated", 8, 7, 8, id="concatenated_one_less"),
        pytest.param("uniform", 8, 35, 36, id="uniform_one_less"),
    ],
)
def test_a_split_shorter_than_a_window_is_refused(tmp_path, mode, window, has, needs):
    store = make_store(tmp_path, [numbered_documents([has])])
    with refused(f"data.mode={mode}: needs {needs} tokens at data.window={window}, the split has {has}; "):
        index_segments(store, mode, window)
