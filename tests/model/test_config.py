"""The decoder's sizes: biases and heads that are not d_model wide."""

import dataclasses

import pytest
import torch

from lab.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder

TINY = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False, attention_width=40, qkv_bias=True)


def test_counts_by_hand():
    # head_dim 40 / 4 = 10, key heads 2 * 10 = 20 wide. Matrices of a block: q and out 2 * 16 * 40 = 1280, k and v
    # 2 * 16 * 20 = 640, feed-forward 3 * 16 * 24 = 1152; sum 3072. Two blocks and the head: 6144 + 23 * 16 = 6512.
    # Norms 5 * 16 = 80, biases 2 * (40 + 20 + 20) = 160, embedding 368.
    assert (TINY.head_dim, TINY.kv_width, TINY.n_matrix_parameters) == (10, 20, 6512)
    assert TINY.n_parameters() == 6512 + 80 + 160 + 368
    assert TINY.n_parameters(tie_embeddings=True) == 6512 + 80 + 160
    # a pair costs 12 operations per layer and unit of width: 12 * 2 * 40 = 960
    assert TINY.flops_per_token(3.0) == 6 * 6512 + 960 * 3


@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": False}, {"attention_width": None}, {"attention_width": 8, "n_kv_heads": 4}],
    ids=["both", "width", "biases", "narrow"],
)
def test_counted_parameters_are_those_of_the_model(changes):
    cfg = dataclasses.replace(TINY, **changes)
    model = Decoder(cfg)
    assert cfg.n_parameters() == sum(p.numel() for p in model.parameters())
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 23)


def test_biases_start_at_zero_and_norms_at_one():
    vectors = {name: p for name, p in Decoder(TINY, seed=1).named_parameters() if p.ndim == 1}
    assert {name for name, p in vectors.items() if not p.any()} == {
        f"blocks.{layer}.attention.{part}.bias" for layer in (0, 1) for part in "qkv"
    }
    assert {float(p.detach().mean()) for name, p in vectors.items() if not name.endswith("bias")} == {1.0}


def test_biases_leave_the_first_draw_of_the_matrices_alone():
    with_biases, without = (Decoder(dataclasses.replace(TINY, qkv_bias=b), seed=1).state_dict() for b in (True, False))
    assert all(torch.equal(with_biases[name], tensor) for name, tensor in without.items())


def test_without_a_seed_nothing_is_drawn_on_the_meta_device():
    with torch.device("meta"):
        model = Decoder(TINY, seed=None)
    assert {p.device.type for p in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_width": 42}, "n_heads=4: must divide attention_width=42; use 3"),
        ({"attention_width": None, "n_heads": 3}, "n_heads=3: must divide d_model=16; use 2"),
        ({"attention_width": 20}, "n_heads=4: head_dim 5 must be even; use another number of heads"),
        ({"attention_width": 40, "n_kv_heads": 3}, "n_kv_heads=3: must divide n_heads=4; use 2"),
    ],
    ids=["width", "d_model", "odd", "kv_heads"],
)
def test_heads_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(TINY, **changes)
    assert str(caught.value) == message


def test_a_width_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"^attention_width=0: must be >= 1"):
        dataclasses.replace(TINY, attention_width=0)
