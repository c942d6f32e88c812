"""What shifts change in attention: by hand, against rounding digit by digit, and through the command."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch

from eval.engine.subject import to_bfloat16
from eval.engine.texts import sample_texts
from eval.precision import ARITHMETICS, Arithmetic, depends_on_positions, first_logit_difference, key_differences, main
from lab.loading import open_model
from lab.model.decoder import Decoder
from lab.positions import distance, frequencies
from lab.probe.needles import load_haystack
from tests.eval.commands import results_in, runner, words_of
from tests.model.by_definition import LEAKY, TINY, drawn, logits_of, projections, softmax, tiny

EXACT_TOL = 1e-10  # D of float64, whose angles at positions up to 2,000 are right to 1e-13
TOL = 1e-12  # sums of some hundred float64 terms below one
REFERENCE, SHIFTS = 16, (0, 2, 100, 2000)
WIDTH = TINY.head_dim
SPEEDS = [TINY.theta ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
FP32, BF16 = ARITHMETICS["fp32"], ARITHMETICS["bf16"]
WHOLE = Arithmetic(torch.bfloat16, whole=True)


def by_hand(decoder, tokens, shift, bf16, whole=False):
    """Compute D's terms by key and D_logit from the equations, key by key and query by query."""
    length = tokens.shape[1]
    terms, first = [[] for _ in range(length)], []
    both = [projections(decoder, tokens, s if whole else 0) for s in (shift, 16)]
    for one, other in zip(*both, strict=True):
        heads = zip(logits_of(*one, SPEEDS, shift, bf16), logits_of(*other, SPEEDS, 16, bf16), strict=True)
        for a, b in heads:
            for i in range(length):
                p, q = softmax(a[i]), softmax(b[i])
                for j in range(i + 1):
                    terms[j].append(abs(p[j] - q[j]) / (length - j))
                first.append(abs(a[i][0] - b[i][0]) / length)
    return [math.fsum(term) for term in terms], math.fsum(first)


@pytest.mark.parametrize("shift", [0, 15, 17, 1000])
@pytest.mark.parametrize("bf16", [False, True], ids=["exact", "bf16"])
def test_differences_equal_the_equations(shift, bf16):
    decoder, tokens = tiny(), drawn(11)
    terms, logits = by_hand(decoder, tokens, shift, bf16)
    arithmetic = BF16 if bf16 else FP32
    found = key_differences(decoder, tokens, [2, shift], arithmetic)[0, 1]
    assert found.tolist() == pytest.approx(terms, abs=TOL)
    assert first_logit_difference(decoder, tokens, shift, arithmetic).item() == pytest.approx(logits, abs=TOL)
    assert (found.sum() > 0.01) == bf16
    swapped = key_differences(decoder, tokens, [REFERENCE], arithmetic, shift)[0, 0]  # a difference has no direction
    assert swapped.tolist() == pytest.approx(terms, abs=TOL)
    logit = first_logit_difference(decoder, tokens, REFERENCE, arithmetic, shift).item()
    assert logit == pytest.approx(logits, abs=TOL)


METHODS = {
    "rope+plain": ({"method": "rope", "theta": 50.0}, {"method": "plain"}),
    "yarn+string": ({"method": "yarn", "factor": 4.0, "train_len": 8}, {"method": "string", "shift": 9, "window": 3}),
    "dynamic_ntk+rerope": ({"method": "dynamic_ntk", "factor": 4.0, "train_len": 8}, {"method": "rerope", "window": 5}),
    "llama3+leaky_rerope": ({"method": "llama3", "factor": 8.0, "train_len": 32}, LEAKY),
}


@pytest.mark.parametrize(("rotary", "method"), METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("whole", [False, True], ids=["one_pass", "a_pass_each"])
def test_exact_arithmetic_knows_no_shift(rotary, method, whole):
    decoder = tiny(rotary=frequencies(head_dim=WIDTH, **rotary), method=distance(**method))
    tokens, arithmetic = drawn(30), Arithmetic(whole=whole)
    assert not depends_on_positions(decoder, 30, SHIFTS)
    assert key_differences(decoder, tokens, SHIFTS, arithmetic).sum(-1).max() < EXACT_TOL
    assert first_logit_difference(decoder, tokens, 0, arithmetic).max() < EXACT_TOL
    assert key_differences(decoder, tokens, SHIFTS, BF16).sum(-1).min() > 1e-3
    assert key_differences(decoder, tokens, [REFERENCE], BF16).abs().max() == 0


def test_each_shift_has_a_forward_pass_of_its_own_in_the_whole_model():
    decoder, tokens = tiny(method=distance("plain")), drawn(11)
    terms, logits = by_hand(decoder, tokens, 1000, bf16=True, whole=True)
    assert key_differences(decoder, tokens, [1000], WHOLE)[0, 0].tolist() == pytest.approx(terms, abs=TOL)
    assert first_logit_difference(decoder, tokens, 1000, WHOLE).item() == pytest.approx(logits, abs=TOL)
    passes = []
    hook = decoder.embedding.register_forward_hook(lambda *_: passes.append(1))
    key_differences(decoder, tokens, [0, 5, 6], WHOLE)
    assert len(passes) == 4
    key_differences(decoder, tokens, [0, 5, 6], BF16)
    assert len(passes) == 5
    hook.remove()


def test_a_whole_model_in_bfloat16_has_rounded_weights_and_activations():
    decoder = tiny(rotary=frequencies("pi", head_dim=WIDTH, factor=2.0)).float()
    other, before = to_bfloat16(decoder), decoder.state_dict()
    assert other.frequencies.inv_freq.tolist() == decoder.frequencies.inv_freq.tolist()
    assert all(torch.equal(tensor, before[name].bfloat16()) for name, tensor in other.state_dict().items())
    seen = []
    other.blocks[2].attention.q.register_forward_hook(lambda _, given, out: seen.append((given[0].dtype, out.dtype)))
    assert 1e-3 < float(key_differences(other, drawn(12), [0], ARITHMETICS["bf16_model"]).sum()) < 10
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert {tensor.dtype for tensor in decoder.state_dict().values()} == {torch.float32}


def test_a_factor_of_later_layers_is_looked_for_there():
    """entropy_abf leaves the first two layers alone: a decoder of two layers has nothing that a shift changes."""
    rotary = frequencies("entropy_abf", head_dim=WIDTH, train_len=8)
    two = dataclasses.replace(TINY, n_layers=2)
    assert not depends_on_positions(tiny(two, rotary=rotary), 30, SHIFTS)
    assert depends_on_positions(tiny(rotary=rotary), 30, SHIFTS), "three layers"
    assert key_differences(tiny(two, rotary=rotary), drawn(30), SHIFTS, FP32).sum(-1).max() < EXACT_TOL


run = runner(main)


def test_the_command_measures_a_run(run_folder, tmp_path, capsys):
    words = [run_folder, "--length=24", "--texts=3", "--shifts=2,100", "--lengths=8,30", "--seed=2"]
    status, out, _ = run([*words, "-o", tmp_path], capsys)
    (file,) = tmp_path.glob("precision-*.jsonl")
    assert status == 0
    assert out.endswith(f"written to {file}\n")
    model = open_model(run_folder)
    corpus = load_haystack(None, model.experiment.data, model.tokenizer)
    texts = sample_texts(corpus, None, model.tokenizer, n_tokens=30, texts=3, seed=2, vocab_size=400)
    texts = torch.from_numpy(texts)
    decoders = {"trained": model.decoder, "random": Decoder(model.decoder.cfg, seed=2)}
    rows = results_in(file)
    for row in rows:
        assert (row["seed"], row["n"], row["reference"]) == (2, 3, 16)
        decoder, arithmetic = decoders[row["weights"]], ARITHMETICS[row["arithmetic"]]
        if row["metric"] == "D_logit":
            values = [first_logit_difference(decoder, t[None, : row["tokens"]], 0, arithmetic).item() for t in texts]
        else:
            assert row["tokens"] == 24
            profiles = [key_differences(decoder, t[None, :24], [row["shift"]], arithmetic)[0, 0] for t in texts]
            values = [float(profile.sum()) for profile in profiles]
            first = sum(float(profile[0]) for profile in profiles) / sum(values)
            assert row["first_token_frac"] == pytest.approx(first, rel=1e-9)
        assert row["value"] == pytest.approx(np.mean(values), rel=1e-9)
        assert row["std"] == pytest.approx(np.std(values, ddof=1), rel=1e-6)
        assert row["metric"] == "D_logit" or row["shift"] or (row["value"] > 1e-3) == (row["arithmetic"] == "bf16")
    assert Counter(row["metric"] for row in rows) == {"D": 3 * 4, "D_logit": 2 * 4}
    assert ["100", *(f"{row['value']:.3g}" for row in rows if row.get("shift") == 100)] in words_of(out)
