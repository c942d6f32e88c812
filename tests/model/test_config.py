"""The decoder's sizes: biases and heads that are not d_model wide."""

import dataclasses

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.devices import peak_flops, utilisation
from tests.refusals import refused

TINY = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False, attention_width=40, qkv="bias")


def test_counts_by_hand():
    # head_dim 40 / 4 = 10, key heads 2 * 10 = 20 wide. Matrices of a block: q and out 2 * 16 * 40 = 1280, k and v
    # 2 * 16 * 20 = 640, feed-forward 3 * 16 * 24 = 1152; sum 3072. Two blocks and the head: 6144 + 23 * 16 = 6512.
    # Norms 5 * 16 = 80, biases 2 * (40 + 20 + 20) = 160, embedding 368.
    assert (TINY.head_dim, TINY.kv_width, TINY.n_matrix_parameters) == (10, 20, 6512)
    assert TINY.n_parameters() == 6512 + 80 + 160 + 368
    assert dataclasses.replace(TINY, tie_embeddings=True).n_parameters() == 6512 + 80 + 160
    # a pair costs 12 operations per layer and unit of width: 12 * 2 * 40 = 960
    assert TINY.flops_per_token(3.0) == 6 * 6512 + 960 * 3


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qkv": "plain"},
        {"qkv": "norm"},
        {"attention_width": None},
        {"attention_width": 8, "n_kv_heads": 4},
        {"d_model": 12, "n_layers": 3, "n_heads": 6, "n_kv_heads": 1, "d_ff": 7, "attention_width": None},
    ],
    ids=["both", "width", "norms", "biases", "narrow", "plain"],
)
def test_counted_parameters_are_those_of_the_model(changes, tied):
    cfg = dataclasses.replace(TINY, tie_embeddings=tied, **changes)
    model = Decoder(cfg)
    counted = sum(p.numel() for p in model.parameters())
    assert cfg.n_parameters() == counted
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 23)


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"attention_width": 42}, ["n_heads=4: must divide attention_width=42; change"]),
        ({"attention_width": None, "n_heads": 3}, ["n_heads=3: must divide d_model=16; change"]),
        ({"attention_width": 20}, ["n_heads=4: head_dim 5 must be even"]),
        ({"n_kv_heads": 3}, ["n_kv_heads=3: must divide n_heads=4; change"]),
    ],
    ids=["width", "d_model", "odd", "kv_heads"],
)
def test_sizes_that_make_no_decoder_are_refused(changes, rules):
    with refused(*rules, error=ConfigError):
        dataclasses.replace(TINY, **changes)


def test_peaks_are_those_of_data_sheets_and_unknown_hardware_has_none():
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12  # dense bf16 operations per second
    assert peak_flops("NVIDIA RTX A1000 Laptop GPU") is peak_flops(None) is None
    # 8e9 operations per token at 50,000 tokens per second: 4e14 of 2 * 1e15 is a fifth
    assert utilisation(8e9, 50_000, 1e15, 2) == pytest.approx(0.2)
    assert utilisation(8e9, 50_000, None, 2) is None
