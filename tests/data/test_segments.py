import itertools
from collections import Counter

import numpy as np
import pytest

from lab.data.segments import index_segments, mix, sample_segments
from tests.data.stores import make_store, numbered_documents, refused
from tests.data.windows import sample_segment


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


# uniform needs a block of 8 * 9 / 2 = 36
@pytest.mark.parametrize(("mode", "window", "has", "needs"), [("concatenated", 8, 7, 8), ("uniform", 8, 35, 36)])
def test_a_split_shorter_than_a_window_is_refused(tmp_path, mode, window, has, needs):
    store = make_store(tmp_path, [numbered_documents([has])])
    with refused(f"data.mode={mode}: {needs} data.window={window} {has}"):
        index_segments(store, mode, window)


# The first output of splitmix64 from these seeds, as published with the generator and in its test vectors. The second
# output from seed s is the first from s + 0x9E3779B97F4A7C15.
SPLITMIX = {0: 0xE220A8397B1DCDAF, 1234567: 6457827717110365317, 1234567 + 0x9E3779B97F4A7C15: 3203168211198807973}


@pytest.mark.parametrize(("value", "expected"), SPLITMIX.items())
def test_mix_is_splitmix64(value, expected):
    assert mix(value) == expected


@pytest.mark.parametrize("n", [1, 3, 1000, 10**12 + 7])
def test_segments_of_many_samples_are_those_of_each_across_epochs(n):
    samples = np.array([0, 1, n - 1, n, n + 1, 2 * n, 5 * n - 1, 10**12, *range(990, 1010)])
    assert sample_segments(samples, n, seed=7).tolist() == [sample_segment(s, n, seed=7) for s in samples.tolist()]
