"""Attention entropy against definitions, against transformers, and through the command."""

import math

import numpy as np
import pytest
import torch

from eval.engine.texts import sample_texts
from eval.entropy import attention_entropy, main
from lab.loading import open_model
from lab.model.attention.inspection import LayerLogits
from lab.positions import distance, frequencies
from tests.eval.commands import results_in, runner
from tests.model.by_definition import METHODS, TINY, drawn, entropy_of, logits_by_distance, projections, tiny

TOL = 1e-11  # some dozens of float64 terms of order one, through three layers
FLOAT32_TOL = 2e-5  # the same in float32, logits up to 20
WIDTH = TINY.head_dim


def by_hand(decoder, tokens, theta, rel, factor=lambda m, layer: 1.0):
    """Average every query's entropy over heads, layer by layer."""
    curves = []
    speeds = [theta ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
    for layer, (q, k) in enumerate(projections(decoder, tokens)):
        heads = logits_by_distance(q, k, speeds, rel, lambda m, layer=layer: factor(m, layer))
        curves.append(np.mean([[entropy_of(row) for row in head] for head in heads], axis=0))
    return np.array(curves)


@pytest.mark.parametrize("name", METHODS)
def test_entropy_equals_a_dense_softmax(name):
    parameters, rel = METHODS[name]
    decoder, tokens = tiny(method=distance(**parameters)), drawn(23, rows=2)
    found = attention_entropy(decoder, tokens)
    assert (found.shape, found.dtype) == ((2, 3, 23), torch.float64)
    for row in range(2):
        expected = by_hand(decoder, tokens[row : row + 1], 50.0, lambda m, n: rel(m - n, m, n))
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=0, atol=TOL)
    assert 0.3 < found.mean() < 0.9 * math.log(23), "neither one-hot nor uniform"


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "granite", "gpt2"])
def test_entropy_equals_that_of_the_weights_of_transformers(family, hugging_face_folder, foreign):
    from tests.model.folders import opened

    tokens = drawn(40, rows=2)
    folder = hugging_face_folder if family == "llama" else foreign(family)
    theirs = opened(folder)(tokens, output_attentions=True).attentions
    found = attention_entropy(open_model(folder).decoder, tokens)
    for layer, weights in enumerate(theirs):
        p = weights.detach().double()
        expected = -(p * p.clamp(min=1e-300).log()).sum(-1).mean(1)
        torch.testing.assert_close(found[:, layer], expected, rtol=0, atol=FLOAT32_TOL)


def test_logits_of_a_long_text_are_never_held_at_once(monkeypatch):
    held, true = [], LayerLogits.block

    def block(self, *arguments):
        logits = true(self, *arguments)
        held.append(logits.numel())
        return logits

    monkeypatch.setattr(LayerLogits, "block", block)
    attention_entropy(tiny(), drawn(700), most=20_000)
    assert max(held) <= 20_000
    assert sum(held) >= 3 * 4 * 700 * 701 / 2


def test_entropy_aware_abf_sharpens_layers_from_2_on_beyond_training():
    """t = max(1, ln(p + 1) / ln L) with L = 8 in layer 2; layers 0 and 1 are those of ABF with the same theta."""
    decoder, tokens = tiny(rotary=frequencies("entropy_abf", head_dim=WIDTH, theta=700.0, train_len=8)), drawn(64)
    factor = lambda m, layer: max(1, math.log(m + 1, 8)) if layer == 2 else 1  # noqa: E731
    expected = by_hand(decoder, tokens, 700.0, lambda m, n: m - n, factor)
    np.testing.assert_allclose(attention_entropy(decoder, tokens)[0].numpy(), expected, rtol=0, atol=TOL)


run = runner(main)


def test_a_result_is_the_mean_over_texts_and_heads(run_folder, text_file, capsys):
    words = [run_folder, "--texts=4", "--lengths=5,30", f"--text={text_file}", "-o", text_file.parent / "out"]
    assert run(words, capsys)[0] == 0
    model = open_model(run_folder)
    texts = sample_texts(text_file.read_text(), None, model.tokenizer, n_tokens=30, texts=4, seed=0, vocab_size=400)
    each = [attention_entropy(model.decoder, torch.from_numpy(text)[None])[0] for text in texts]
    for row in results_in(*(text_file.parent / "out").iterdir()):
        values = [float(curve[row["layer"], row["visible"] - 1]) for curve in each]
        mean = math.fsum(values) / 4
        assert row["entropy"] == pytest.approx(mean, rel=1e-12)
        assert row["std"] == pytest.approx(math.sqrt(math.fsum((x - mean) ** 2 for x in values) / 3), rel=1e-9)
