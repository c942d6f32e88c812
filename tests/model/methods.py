"""A small decoder, and the position methods with parameters that matter in it."""

import dataclasses

import pytest
import torch

from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import distance, frequencies
from tests.model.by_definition import ONCE

TINY = DecoderConfig(d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=48, vocab_size=61, tie_embeddings=False)
DISTANCES = {name: distance(**parameters) for name, (parameters, _) in ONCE.items()}
DISTANCES["rerope"] = distance("rerope", window=6, log_n=8)
FREQUENCIES = {
    "rope": frequencies("rope", head_dim=8),
    "pi": frequencies("pi", head_dim=8, factor=4.0),
    "llama3": frequencies("llama3", head_dim=8, factor=8.0, train_len=64),
    "yarn": frequencies("yarn", head_dim=8, factor=4.0, train_len=16),
    "entropy_abf": frequencies("entropy_abf", head_dim=8, train_len=6),
}
DYNAMIC = frequencies("dynamic_ntk", head_dim=8, theta=100.0, factor=4.0, train_len=8)
KINDS = ("plain", "dca", "self_extend")  # one band; bands of one key map; a second key map, rotated and cached apart
every_kind = pytest.mark.parametrize("method", [DISTANCES[name] for name in KINDS], ids=KINDS)
PAIRS = [*(("yarn", name) for name in DISTANCES), *((name, "plain") for name in FREQUENCIES if name != "yarn")]
every_pair = pytest.mark.parametrize(
    ("rotary", "method"), [(FREQUENCIES[f], DISTANCES[d]) for f, d in PAIRS], ids=map("-".join, PAIRS)
)


def decoder(rotary=FREQUENCIES["rope"], method=DISTANCES["plain"], dtype=torch.float64, *, backend="auto", **settings):
    cfg = dataclasses.replace(TINY, **settings)
    model = Decoder(cfg, frequencies=rotary, distance=method, backend=backend, seed=3).to(dtype)
    for p in model.parameters():  # the published initialisation is too small for attention to matter
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    return model.eval()


def tokens(seed, *shape, vocab=60):
    return torch.randint(1, vocab, shape, generator=torch.Generator().manual_seed(seed))
