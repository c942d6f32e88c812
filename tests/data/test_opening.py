"""Opening a corpus and its first packs: what is located does not grow with the corpus or with the steps done."""

import resource
from contextlib import nullcontext

import numpy as np
import pytest

from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.data.tokenizing import TokenShardWriter
from tests.data.stores import make_store, stream_over

DOCUMENTS = 200_000  # of each shard
WINDOW = 8
LOOK_AHEAD = 4


LENGTHS = np.random.default_rng(4).integers(1, 20, (2, DOCUMENTS))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two shards."""
    folder = tmp_path_factory.mktemp("large")
    for number, ends in enumerate(LENGTHS.cumsum(1)):
        writer = TokenShardWriter(folder / f"task-{number:05d}", "<u2")
        writer.write("train", "tokens", np.arange(ends[-1], dtype="<u4"))
        writer.write("train", "ends", ends)
        writer.write("train", "sources", np.zeros(DOCUMENTS))
        writer.sources["made"] = 0
        writer.counts["train"] = {"documents": DOCUMENTS, "tokens": int(ends[-1])}
        writer.close()
    return folder


@pytest.mark.parametrize("mode", ["natural", "concatenated", "uniform"])
@pytest.mark.parametrize("step", [0, 10**5, 10**12])
def test_opening_at_any_step_locates_each_waiting_segment_once(corpus, mode, step, monkeypatch):
    state = None if step == 0 else np.array([step, step + LOOK_AHEAD, *range(step, step + LOOK_AHEAD)])
    store, located = TokenStore.open(corpus, "train"), []
    segments = index_segments(store, mode, WINDOW)
    locate = segments.locate
    monkeypatch.setattr(segments, "locate", lambda number: located.append(number) or locate(number))
    pack = next(stream_over(store, segments, pack_tokens=WINDOW, look_ahead=LOOK_AHEAD, state=state))
    assert segments.n > 10**5
    assert pack.state[1] >= step
    assert len(located) == LOOK_AHEAD


@pytest.mark.parametrize("window", [1, 7, WINDOW, 1000])
def test_segments_are_located_as_by_the_whole_list(corpus, window):
    store = TokenStore.open(corpus, "train")
    index = index_segments(store, "natural", window)
    flat = LENGTHS.ravel()
    pieces = -(-flat // window)
    assert index.n == pieces.sum()
    firsts, starts = np.cumsum(pieces) - pieces, np.cumsum(flat) - flat
    edges = [0, 255, 256, 257, DOCUMENTS - 1, DOCUMENTS, DOCUMENTS + 256, 2 * DOCUMENTS - 1]
    for document in [*edges, *np.random.default_rng(window).integers(0, 2 * DOCUMENTS, 200).tolist()]:
        for piece in {0, int(pieces[document]) - 1}:
            found, left = index.locate(int(firsts[document]) + piece), int(flat[document]) - piece * window
            assert (found.start, found.length) == (starts[document] + piece * window, min(window, left))
            assert found.continues == (left > window)


@pytest.mark.parametrize("limit", [100, 101, 128])
def test_more_shards_than_the_limit_of_open_files(tmp_path, monkeypatch, limit):
    """A soft limit is raised; one that is too low is an error."""
    make_store(tmp_path, [[[number + 1]] for number in range(60)])
    if limit < 128:
        monkeypatch.setattr("lab.data.shards.allow_open_files", lambda: None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        with nullcontext() if limit == 128 else pytest.raises(OSError, match="Too many open files"):
            assert TokenStore.open(tmp_path, "train").n_tokens == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
