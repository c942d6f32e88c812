import itertools
from collections import Counter

import pytest

from lab.data.segments import index_segments
from tests.data.stores import make_store, numbered_documents, refused


@pytest.mark.parametrize(("window", "blocks", "extra"), [(1, 5, 0), (2, 3, 1), (8, 1, 0), (8, 4, 35), (33, 3, 7)])
def test_uniform_segments_have_every_length_equally_often(tmp_path, window, blocks, extra):
    block = window * (window + 1) // 2
    total = blocks * block + extra
    flat = list(range(1, total + 1))
    documents = [flat[k : k + 11] for k in range(0, total, 11)]
    store = make_store(tmp_path, [documents[: len(documents) // 2], documents[len(documents) // 2 :]])
    index = index_segments(store, "uniform", window)
    segments = [*map(index.locate, range(index.n))]
    tokens = [store.read(segment.start, segment.length).tolist() for segment in segments]
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
    with refused(f"data.mode={mode}: {needs} data.window={window} {has}"):
        index_segments(store, mode, window)
