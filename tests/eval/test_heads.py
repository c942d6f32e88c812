"""Shares of attention on the answer's copy against transformers' weights and dense attention, and the command."""

import numpy as np
import pandas as pd
import pytest
import torch

import lab
from eval.heads import main
from lab.data.config import Synthetic
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.loading import open_model
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe
from lab.probe.heads import shares_by_head
from lab.probe.needles import write_filler
from tests.eval.commands import results_in, runner, size_of, words_of
from tests.model.by_definition import logits_by_distance, projections, softmax, string
from tests.model.folders import opened
from tests.opened import write_run
from tests.refusals import refused

FLOAT32_TOL = 2e-6
heads = runner(main, bar="heads")


def sampled(folder, window=160, digits=3):
    """One-number tests of a folder's tokenizer, three at a distance."""
    config = ProbeConfig(distance_tests=3, distances=(70,), digits=digits)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return DistanceProbe(config, tokenizer, write_filler(Synthetic()), window=window, stop_id=None)


def placed(probe, test):
    """Write a test's tokens with its answer, and pair each query of the number with its copy, found by search."""
    case = probe.case(70, test)
    number = probe.tokenizer.encode(f" {case.numbers[0]}", add_special_tokens=False).ids
    text = [*case.prompt_ids, *case.encoded.answer]
    starts = [at for at in range(len(text)) if text[at : at + len(number)] == number]
    copy, answer = starts
    assert copy in (len(case.prompt_ids) - 1 - 70, len(case.prompt_ids) - 1 - 71)
    digits = [k for k, token in enumerate(number) if any(c.isdigit() for c in probe.tokenizer.decode([token]))]
    return torch.tensor([text]), [(answer + k - 1, copy + k) for k in digits]


def mean_shares(attentions, pairs):
    """Average weights (layers, heads, T, T) over pairs."""
    return np.mean([[[p[q, c] for p in layer] for layer in attentions] for q, c in pairs], axis=0)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_shares_are_the_weights_of_transformers(family, hugging_face_folder, foreign):
    folder = hugging_face_folder if family == "llama" else foreign(family)
    probe = sampled(folder)
    tests = []
    for test in range(3):
        tokens, pairs = placed(probe, test)
        theirs = opened(folder)(tokens, output_attentions=True).attentions
        tests.append(mean_shares([layer[0].detach().double().numpy() for layer in theirs], pairs))
    found = list(shares_by_head(open_model(folder).decoder, probe, 70))
    scores = np.array([row["score"] for row in found]).reshape(tests[0].shape)
    np.testing.assert_allclose(scores, np.mean(tests, axis=0), rtol=0, atol=FLOAT32_TOL)
    std = np.array([row["std"] for row in found]).reshape(tests[0].shape)
    np.testing.assert_allclose(std, np.std(tests, axis=0, ddof=1), rtol=0, atol=FLOAT32_TOL)
    assert scores.min() < scores.mean() / 1.1, "heads differ"


def test_shares_under_string_are_those_of_dense_attention(prepared, tmp_path):
    run = write_run(tmp_path / "tiny", prepared, position={"distance": {"method": "string", "shift": 40, "window": 8}})
    probe = sampled(shard_folder(prepared), window=120)
    decoder = open_model(run).decoder
    tests = []
    for test in range(3):
        tokens, pairs = placed(probe, test)
        speeds = [decoder.cfg.theta ** (-2 * j / decoder.cfg.head_dim) for j in range(decoder.cfg.head_dim // 2)]
        layers = []
        for q, k in projections(decoder, tokens):
            layers.append(logits_by_distance(q, k, speeds, lambda m, n: string(m - n, m, n, 40, 8)))
        tests.append([[[softmax(head[q])[c] for q, c in pairs] for head in layer] for layer in layers])
    expected = np.mean(tests, axis=(0, 3))
    found = [row["score"] for row in shares_by_head(decoder, probe, 70)]
    np.testing.assert_allclose(found, expected.flatten(), rtol=0, atol=FLOAT32_TOL)


def test_a_series_has_a_table_each_one_over_time_and_a_picture(prepared, tmp_path, capsys):
    series = [write_run(tmp_path / name, prepared, std=std) for name, std in (("a", 0.2), ("b", 0.6))]
    words = [*series, "--window=120", "--tests=2", "--distances=40,60", "--plot", "-o", tmp_path / "out"]
    status, out, err = heads(words, capsys)
    assert (status, err) == (0, "")
    files = sorted((tmp_path / "out").glob("heads-*.jsonl"))
    rows = [results_in(path) for path in files]
    assert [len(part) for part in rows] == [2 * 3 * 4] * 2  # distances, layers, heads
    means = {(layer, head): [] for layer in range(3) for head in range(4)}
    for row in rows[-1]:
        means[row["layer"], row["head"]].append(row["score"])
    best = max(means, key=lambda key: np.mean(means[key]))
    first = words_of(out)[[line[:2] for line in words_of(out)].index(["distance", "40"], 3) + 1]
    assert first[:4] == ["layer", f"{best[0]},", "head", str(best[1])]
    assert first[4:] == [f"{value:.3f}" for value in (*means[best], np.mean(means[best]))]
    width, height = size_of(next((tmp_path / "out").glob("*.png")))
    assert width > 500
    assert height > 700


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_watched_model_has_the_heads_of_the_command_and_is_left_as_it_was(family, hugging_face_folder, foreign):
    folder = hugging_face_folder if family == "llama" else foreign(family)
    model = opened(folder)
    tokens = torch.arange(30)[None]
    before = model(tokens).logits
    model.train()
    with lab.watch(model, load_tokenizer(folder / "tokenizer.json"), window=160) as watch:
        found = watch.heads(tests=3, distances=[70], seed=0)
        assert watch.frequency().sum() == 0
    expected = [*shares_by_head(open_model(folder).decoder, sampled(folder, digits=6), 70)]
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected))
    assert model.training
    assert torch.equal(model.eval()(tokens).logits, before)  # in eval mode, without dropout


def test_heads_of_a_model_whose_attention_cannot_be_read_are_one_line(hugging_face_folder):
    model = torch.nn.Sequential(torch.nn.Embedding(600, 8), torch.nn.Linear(8, 600))
    tokenizer = load_tokenizer(hugging_face_folder / "tokenizer.json")
    rule = "model=Sequential: is no whole model of transformers or the lab, of which attention is read"
    with lab.watch(model, tokenizer, window=160, input="input") as watch, refused(rule):
        watch.heads(tests=1)
