import itertools
from collections import Counter

import pytest

from lab.core.errors import ConfigError
from lab.data.segments import index_segments
from tests.data.stores import drawn_lengths, make_store, numbered_documents, refused, stream_over
from tests.data.windows import located

IGNORE = -100  # torch's own, see torch.nn.CrossEntropyLoss
WINDOW, PACK, LOOK_AHEAD = 16, 64, 20
LENGTHS = drawn_lengths(3, 90, 50)


@pytest.fixture
def corpus(tmp_path):
    """A store over two shards in which token t of the whole is t + 1, and its natural segments."""
    documents = numbered_documents(LENGTHS)
    store = make_store(tmp_path, [documents[:37], documents[37:]])
    return store, index_segments(store, "natural", WINDOW)


def stream_of(corpus, stream=0, n_streams=1, **settings):
    values = {"pack_tokens": PACK, "seed": 5, "look_ahead": LOOK_AHEAD, **settings}
    return stream_over(*corpus, stream=stream, n_streams=n_streams, **values)


def take(stream, n):
    return list(itertools.islice(stream, n))


def parts(pack):
    """List the (tokens, targets) of each segment of a pack."""
    bounds = list(itertools.accumulate(pack.lengths, initial=0))
    return [(pack.tokens[a:b].tolist(), pack.targets[a:b].tolist()) for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_what_is_packed_and_what_waits_is_every_sample_once(corpus, n_streams):
    _, segments = corpus
    packed, waiting, upto = Counter(), Counter(), []
    for j in range(n_streams):
        packs = take(stream_of(corpus, j, n_streams), 40)
        packed.update(tokens[0] for pack in packs for tokens, _ in parts(pack))
        state = packs[-1].state.tolist()
        samples = [sample for sample in state[2:] if sample >= 0]
        assert all(sample % n_streams == j for sample in [*samples, state[1]])
        waiting.update(located(segments, sample, 5).start + 1 for sample in samples)
        upto += range(j, state[1], n_streams)
    drawn = Counter(located(segments, sample, 5).start + 1 for sample in upto)
    assert packed + waiting == drawn


def test_a_segment_longer_than_a_pack_is_refused(tmp_path):
    store = make_store(tmp_path, [numbered_documents([17])])
    with refused("train.micro_batch_tokens=16: must hold {}17 {}", ConfigError):
        next(stream_of((store, index_segments(store, "natural", 17)), pack_tokens=16))
