import itertools

import pytest

from lab.data.config import Bpe, DataConfig, Synthetic
from lab.data.preparation import prepare, shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from tests.data.stores import stream_over

PACKS = 300


@pytest.mark.parametrize(("window", "pack_tokens"), [(256, 4096), (128, 2048)])
def test_packs_of_the_default_corpus_are_full(tmp_path, window, pack_tokens):
    config = DataConfig(
        corpus=Synthetic(documents=4000, median_tokens=0.26 * window, section_tokens=float(window)),
        tokenizer=Bpe(sample_documents=400),
        window=window,
        held_out_frac=0.0,
        folder=str(tmp_path),
    )
    prepare(config, progress=False)
    store = TokenStore.open(shard_folder(config), "train")
    fills = []
    for j in range(2):
        settings = {"pack_tokens": pack_tokens, "seed": 0, "look_ahead": config.look_ahead}
        stream = stream_over(store, index_segments(store, "natural", window), stream=j, n_streams=2, **settings)
        fills += [sum(pack.lengths) / pack_tokens for pack in itertools.islice(stream, PACKS)]
    assert sum(fills) / len(fills) >= 0.995
    assert min(fills) >= 0.95
