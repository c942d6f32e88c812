import itertools
from collections import Counter

import pytest

from lab.core.errors import ConfigError
from lab.data.segments import index_segments
from tests.data.stores import drawn_lengths, make_store, numbered_documents, refused, stream_over
from tests.data.windows import located, runs_of


@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_what_is_packed_and_what_waits_is_every_sample_once(tmp_path, n_streams):
    documents = numbered_documents(drawn_lengths(3, 90, 50))
    store = make_store(tmp_path, [documents[:37], documents[37:]])
    segments = index_segments(store, "natural", 16)
    packed, waiting, upto = Counter(), Counter(), []
    for j in range(n_streams):
        stream = stream_over(store, segments, stream=j, n_streams=n_streams, pack_tokens=64, look_ahead=20)
        packs = list(itertools.islice(stream, 40))
        packed.update(tokens[0] for pack in packs for tokens, *_ in runs_of(pack))
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
        next(stream_over(store, index_segments(store, "natural", 17), pack_tokens=16))
