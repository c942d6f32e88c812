"""What measurements see of a decoder is what its attention computes."""

import dataclasses
import math

import pytest
import torch

from lab.model.attention import inspection
from lab.model.attention.inspection import LayerLogits, layer_inputs, token_scores
from lab.model.attention.layout import LayerInputs
from lab.model.config import LayersConfig
from lab.model.decoder import DecoderConfig
from lab.positions import distance, frequencies
from tests.model.by_definition import TINY, drawn, eight_bits, projections, tiny

TOL = 1e-12  # some dozens of float64 products of order ten
TINY_HEAD = DecoderConfig(4, 1, 1, 1, 4, 61, tie_embeddings=False, theta=50.0)


def test_normed_queries_and_keys_are_seen():
    """Qwen3's: w x / sqrt(mean(x^2) + eps) over each head."""
    cfg = dataclasses.replace(TINY, qkv="norm")
    decoder, tokens = tiny(cfg), drawn(7)
    for inputs, parts in zip(layer_inputs(decoder, tokens), projections(decoder, tokens), strict=True):
        attention = decoder.blocks[inputs.layer].attention
        norms, found = (attention.q_norm, attention.k_norm), (inputs.q_BNTH[0], inputs.k_BNTH[0])
        for seen, x, norm in zip(found, parts, norms, strict=True):
            expected = norm.weight.detach() * x / (x.square().mean(-1, keepdim=True) + cfg.norm_eps).sqrt()
            torch.testing.assert_close(seen, expected, rtol=0, atol=TOL)


def test_the_factor_is_in_the_query_before_it_is_rounded():
    # at position 3, of a model trained on 2 tokens, the factor is ln 4 / ln 2 = 2: exact in bfloat16; at 2 it is
    # ln 3 / ln 2 = 1.58496..., which times 1 + 2^-7 is 1.59734..., in eight bits 204/128 = 1.59375
    rotary = frequencies("entropy_abf", head_dim=4, train_len=2, exempt_layers=0)
    decoder = tiny(TINY_HEAD, rotary=rotary)
    inputs = next(layer_inputs(decoder, drawn(4)))
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    x[..., 1] = 1 + 2**-7  # the slow pair, 1/707 radian per token
    logits = LayerLogits(LayerInputs(0, x, x, inputs.layout), torch.bfloat16).block(slice(0, 4), slice(0, 1))
    turned = [(x[0, 0, 0, 1].item() * f, m * 500_000**-0.5) for m, f in ((2, 1.5849625007211562), (3, 2.0))]
    expected = [eight_bits(a * math.cos(t)) * (1 + 2**-7) / 2 for a, t in turned]
    assert logits[0, 0, 2:, 0].tolist() == pytest.approx(expected, abs=1e-15)
    assert expected[0] == 1.59375 * (1 + 2**-7) / 2


@pytest.mark.parametrize("rows", [1, 7, 10_000], ids="head_rows_{}".format)
@pytest.mark.parametrize("method", ["plain", "string"])
def test_the_logit_of_each_target(rows, method, monkeypatch):
    monkeypatch.setattr(inspection, "BLOCK_LOGITS", rows * TINY.d_model)
    decoder = tiny(method=distance(method, **({"shift": 9, "window": 3} if method == "string" else {})))
    tokens, targets = drawn(23, rows=2), drawn(23, rows=3)[1:]
    targets[:, ::5] = -100
    with torch.no_grad():
        logits = decoder(tokens)
    expected = torch.zeros(2, 23, dtype=torch.float64)
    for row, place in (targets >= 0).nonzero().tolist():
        expected[row, place] = logits[row, place, targets[row, place]]
    found = token_scores(decoder, tokens, targets)[2]
    torch.testing.assert_close(found, expected, rtol=0, atol=10 * TOL)
    assert not found.requires_grad


def test_pairs_beyond_a_window_are_hidden():
    layers = LayersConfig(pattern=("window", "full"), window=3)
    for inputs in layer_inputs(tiny(dataclasses.replace(TINY, layers=layers)), drawn(6)):
        hidden = LayerLogits(inputs).block(slice(0, 6))[0, 0].isneginf()
        window = 3 if inputs.layer % 2 == 0 else 6
        assert hidden.tolist() == [[not m - window < n <= m for n in range(6)] for m in range(6)]
