"""Position methods in the whole decoder: packed rows, caches and generation against plain forward passes."""

import pytest
import torch

from lab.model.decoder import Decoder, DecoderConfig
from lab.model.generation.generate import greedy
from lab.positions import distance, frequencies

TINY = DecoderConfig(d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=48, vocab_size=61, tie_embeddings=False)
FLOAT64_TOL = 1e-11  # three layers of float64 sums
DISTANCES = {
    "plain": distance("plain"),
    "string": distance("string", shift=7, window=3),
    "dca": distance("dca", chunk=6, train_len=10),
    "self_extend": distance("self_extend", group=3, window=5),
    "rerope": distance("rerope", window=6, log_n=8),
    "leaky_rerope": distance("leaky_rerope", window=6, leak=1.5),
}
FREQUENCIES = {
    "rope": frequencies("rope", head_dim=8),
    "llama3": frequencies("llama3", head_dim=8, factor=8.0, train_len=64),
    "yarn": frequencies("yarn", head_dim=8, factor=4.0, train_len=16),
    "entropy_abf": frequencies("entropy_abf", head_dim=8, train_len=6),
}
distances = pytest.mark.parametrize("method", DISTANCES.values(), ids=DISTANCES)


def decoder(rotary, method, backend="sdpa"):
    model = Decoder(TINY, frequencies=rotary, distance=method, backend=backend, seed=3).double()
    for p in model.parameters():  # the published initialisation is too small for attention to matter
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    return model.eval()


def tokens(seed, *shape):
    return torch.randint(TINY.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@distances
@pytest.mark.parametrize("rotary", FREQUENCIES.values(), ids=FREQUENCIES)
@pytest.mark.parametrize("backend", ["reference", "sdpa", pytest.param("flex", marks=pytest.mark.slow)])
def test_prefill_equals_decoding_token_by_token_and_in_chunks(method, rotary, backend):
    model, text = decoder(rotary, method, backend), tokens(1, 2, 25)
    whole = decoder(rotary, method, "reference")(text)
    for chunks in ([25], [1] * 25, [11, 1, 1, 12]) if backend != "flex" else ([25], [11, 1, 13]):
        cache, outs = model.new_cache(2, 25), []
        for part in text.split(chunks, dim=1):
            outs.append(model(part, cache=cache))
        torch.testing.assert_close(torch.cat(outs, dim=1), whole, rtol=0, atol=FLOAT64_TOL)


@torch.no_grad()
@distances
def test_a_packed_row_equals_its_segments_and_a_padded_batch(method):
    model, lengths = decoder(FREQUENCIES["llama3"], method), [13, 1, 20, 4]
    texts = [tokens(n, 1, length) for n, length in enumerate(lengths)]
    row = torch.cat([*texts, tokens(9, 1, 3)], dim=1)
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    packed = model(row, cu_seqlens=ends)
    padded = torch.cat([torch.cat([t, tokens(8, 1, 20 - t.shape[1])], dim=1) for t in texts])
    rows = model(padded)
    for n, (begin, length) in enumerate(zip(ends.tolist(), lengths)):
        alone = model(texts[n])
        torch.testing.assert_close(packed[:, begin : begin + length], alone, rtol=0, atol=FLOAT64_TOL)
        torch.testing.assert_close(rows[n : n + 1, :length], alone, rtol=0, atol=FLOAT64_TOL)


@torch.no_grad()
@distances
def test_running_ids_and_gapped_ids_in_a_packed_row(method):
    model, exact = decoder(FREQUENCIES["rope"], method), decoder(FREQUENCIES["rope"], method, "reference")
    row, ends = tokens(2, 1, 24), torch.tensor([0, 10, 11, 24]).int()
    gapped = torch.tensor([0, 1, 2, 3, 9, 10, 11, 30, 31, 32, 5, *range(40, 53)])
    for ids in (torch.arange(24), torch.arange(24) + 5, gapped):
        out = model(row, cu_seqlens=ends, position_ids=ids)
        torch.testing.assert_close(out, exact(row, cu_seqlens=ends, position_ids=ids), rtol=0, atol=FLOAT64_TOL)


@torch.no_grad()
@distances
def test_greedy_generation_equals_reading_everything_anew(method):
    model, text = decoder(FREQUENCIES["yarn"], method), tokens(3, 2, 9)
    answer = greedy(model, text, 12)
    for _ in range(12):
        text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(answer, text[:, 9:])


@torch.no_grad()
def test_dynamic_ntk_places_all_cached_keys_anew_at_every_length():
    dynamic = frequencies("dynamic_ntk", head_dim=8, theta=100.0, factor=4.0, train_len=8)
    model, text = decoder(dynamic, DISTANCES["string"]), tokens(4, 1, 20)
    one_layer = Decoder(
        DecoderConfig(**{**TINY.__dict__, "n_layers": 1}), frequencies=dynamic, distance=DISTANCES["string"]
    ).double()
    cache = one_layer.new_cache(1, 20)
    for n in range(1, 21):  # one layer's keys know no position of their own, so that only their places matter
        out = one_layer(text[:, n - 1 : n], cache=cache)
        fixed = frequencies("dynamic_ntk", head_dim=8, theta=100.0, factor=4.0, train_len=8, length=n)
        one_layer.frequencies, kept = fixed, one_layer.frequencies
        torch.testing.assert_close(out[:, -1], one_layer(text[:, :n])[:, -1], rtol=0, atol=FLOAT64_TOL)
        one_layer.frequencies = kept
    fixed = frequencies("dynamic_ntk", head_dim=8, theta=100.0, factor=4.0, train_len=8, length=20)
    assert torch.equal(model(text), decoder(fixed, DISTANCES["string"])(text))
    assert not torch.equal(dynamic.inv_freq, fixed.inv_freq)


def test_training_gradients_of_a_packed_row_equal_the_reference():
    row, targets = tokens(5, 1, 40), tokens(6, 1, 40)
    for method in DISTANCES.values():
        grads = []
        for backend in ("sdpa", "reference"):
            model = decoder(FREQUENCIES["entropy_abf"], method, backend)
            model(row, cu_seqlens=torch.tensor([0, 22, 23, 38]).int(), targets=targets).backward()
            grads.append([p.grad for p in model.parameters()])
        for x, y in zip(*grads, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-9)


@torch.no_grad()
def test_dynamic_ntk_in_a_packed_row_depends_on_no_neighbour():
    dynamic = frequencies("dynamic_ntk", head_dim=8, theta=100.0, factor=4.0, train_len=8)
    model, short, long = decoder(dynamic, DISTANCES["plain"]), tokens(7, 1, 12), tokens(8, 1, 24)
    together = model(torch.cat([short, long], dim=1), cu_seqlens=torch.tensor([0, 12, 36]).int())[:, :12]
    alone = model(short, cu_seqlens=torch.tensor([0, 12]).int())
    torch.testing.assert_close(together, alone, rtol=0, atol=FLOAT64_TOL)


def test_computing_activations_again_changes_no_gradient():
    row, targets = tokens(5, 1, 40), tokens(6, 1, 40)
    grads = []
    for recompute in (False, True):
        model = decoder(FREQUENCIES["rope"], DISTANCES["string"])
        model.recompute = recompute
        model(row, cu_seqlens=torch.tensor([0, 22, 40]).int(), targets=targets).backward()
        grads.append([p.grad for p in model.parameters()])
    for x, y in zip(*grads, strict=True):
        assert torch.equal(x, y)
