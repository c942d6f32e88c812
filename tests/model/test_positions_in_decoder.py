"""Position methods in the whole decoder: packed rows, caches and generation against plain forward passes."""

import numpy as np
import pytest
import torch

from lab.counts import PositionCounts
from lab.positions import distance
from tests.model.methods import DISTANCES, DYNAMIC, decoder, every_pair, tokens

FLOAT64_TOL = 1e-11  # three layers of float64 sums
CHUNK = 5
INTRA = distance("dca", train_len=8, chunk=CHUNK, parts="intra")


@torch.no_grad()
@every_pair
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_prefill_equals_decoding_token_by_token_and_in_chunks(method, rotary, backend):
    model, text = decoder(rotary, method, backend=backend), tokens(1, 2, 25)
    whole = decoder(rotary, method, backend="reference")(text)
    for chunks in ([25], [1] * 25, [11, 1, 1, 12]):
        cache, outs = model.new_cache(2, 25), []
        for part in text.split(chunks, dim=1):
            outs.append(model(part, cache=cache))
        torch.testing.assert_close(torch.cat(outs, dim=1), whole, rtol=0, atol=FLOAT64_TOL)


@torch.no_grad()
def test_dynamic_ntk_places_all_cached_keys_anew_at_every_length():
    model, text = decoder(DYNAMIC, DISTANCES["string"]), tokens(4, 1, 20)
    one_layer = decoder(DYNAMIC, DISTANCES["string"], n_layers=1)
    cache = one_layer.new_cache(1, 20)
    for n in range(1, 21):  # one layer's keys know no position of their own, so that only their places matter
        out = one_layer(text[:, n - 1 : n], cache=cache)
        one_layer.frequencies = DYNAMIC.at_length(n)
        torch.testing.assert_close(out[:, -1], one_layer(text[:, :n])[:, -1], rtol=0, atol=FLOAT64_TOL)
        one_layer.frequencies = DYNAMIC
    fixed = DYNAMIC.at_length(20)
    assert torch.equal(model(text), decoder(fixed, DISTANCES["string"])(text))
    assert not torch.equal(DYNAMIC.inv_freq, fixed.inv_freq)


def test_hidden_pairs_are_not_counted():
    rows = lambda q, k: INTRA.rel_pos(torch.from_numpy(q), torch.from_numpy(k)).numpy()  # noqa: E731
    hidden, chunks = PositionCounts(12, rows), PositionCounts(12)
    hidden.add_segments([12, 7, 3])
    chunks.add_segments([5, 5, 2, 5, 2, 3])  # each segment cut at multiples of 5
    assert np.array_equal(hidden.frequency(), chunks.frequency())
