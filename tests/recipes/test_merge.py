"""Merged models: every weight a weighted sum, positions that are chosen, and a line for every mistake."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from lab.loading import open_model
from lab.merge import main, read_shares
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.huggingface import save_pretrained
from lab.positions import frequencies
from tests.model.folders import assert_same_logits, opened, safetensors_torch
from tests.opened import CONSUMED, SIZES, write_run
from tests.refusals import check_faults

CFG = DecoderConfig(**SIZES, vocab_size=400)
ONE_STEP = 2**-23  # of float32, relative: a fused multiply-add rounds to the other side now and then


def filled(number, cfg=CFG, method="rope", **parameters):
    """A decoder whose weights are all one number."""
    decoder = Decoder(
        cfg, frequencies=frequencies(method, head_dim=cfg.head_dim, **{"theta": 500.0, **parameters}), seed=None
    )
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.fill_(number)
    return decoder


def drawn(seed, cfg=CFG, method="rope", **parameters):
    """A decoder whose weights are drawn."""
    decoder = filled(0.0, cfg, method, **parameters)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(torch.empty(parameter.shape).normal_(float("norm" in name), 0.3, generator=generator))
    return decoder


def save(folder, decoder, train_len=64):
    save_pretrained(decoder, folder, train_len=train_len)
    return folder


def tensors(folder):
    return safetensors_torch.load_file(folder / "model.safetensors")


def numbers(folder):
    """The numbers that occur in a folder's weights."""
    return {number for tensor in tensors(folder).values() for number in tensor.unique().tolist()}


def assert_same_bits(folder, other):
    a, b = tensors(folder), tensors(other)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype == torch.float32
        assert torch.equal(a[name].view(torch.int32), b[name].view(torch.int32)), name


def without_bars(text):
    return [line for line in text.splitlines() if not line.startswith(("read: ", "merge: "))]


@pytest.fixture
def merged(tmp_path, capsys):
    """A function that merges into a new folder and returns it."""

    def merge(*words):
        folder = tmp_path / "merged"
        assert main([*map(str, words), "-o", str(folder)]) == 0
        told = capsys.readouterr()
        assert without_bars(told.err) == []
        assert told.out.startswith(f"{folder}: ")
        return folder

    return merge


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", prepared, theta=500.0)


# the sum


@pytest.mark.parametrize(
    ("values", "words", "expected"),
    [
        pytest.param([1.0, 3.0], [], 2.0, id="equal_shares"),
        pytest.param([1.0, 3.0], ["--weights", "0.25", "0.75"], 2.5, id="quarters"),
        pytest.param([1.0, 3.0], ["--weights", "1", "0"], 1.0, id="one_alone"),
        pytest.param([1.0, 3.0], ["--weights", "-0.5", "1.5"], 4.0, id="beyond_the_second"),
        pytest.param([2.0, 4.0, 8.0], ["--weights", "0.5", "0.25", "0.25"], 4.0, id="three"),
        pytest.param([3.0, 6.0, 9.0], [], 6.0, id="three_equal_shares"),
    ],
)
def test_weights_are_weighted_sums(values, words, expected, tmp_path, merged):
    folders = [save(tmp_path / str(n), filled(value)) for n, value in enumerate(values)]
    assert numbers(merged(*folders, *words)) == {expected}


def test_every_weight_is_the_sum_of_its_namesakes(tmp_path, merged):
    a, b = save(tmp_path / "a", drawn(1)), save(tmp_path / "b", drawn(2))
    result, ours, others = tensors(merged(a, b, "--weights", "0.3", "0.7")), tensors(a), tensors(b)
    assert result.keys() == ours.keys()
    for name, tensor in result.items():
        by_hand = (0.3 * ours[name].numpy().astype("f8") + 0.7 * others[name].numpy().astype("f8")).astype("f4")
        np.testing.assert_allclose(tensor.numpy(), by_hand, rtol=ONE_STEP, atol=0, err_msg=name)


@pytest.mark.parametrize("n_models", [2, 3, 7])
def test_equal_models_merge_to_themselves_bit_for_bit(n_models, tmp_path, merged):
    decoder = drawn(1)
    with torch.no_grad():  # both zeros, the smallest number above zero and the largest of all
        decoder.norm.weight[:4] = torch.tensor([-0.0, 0.0, 1e-45, torch.finfo(torch.float32).max])
    a = save(tmp_path / "a", decoder)
    assert_same_bits(merged(*[a] * n_models), a)


def test_bfloat16_weights_are_added_in_more_digits(tmp_path, merged):
    a = save(tmp_path / "a", filled(1.0).to(torch.bfloat16))
    b = save(tmp_path / "b", filled(1.0078125).to(torch.bfloat16))  # 1 + 2^-7, the next number that bfloat16 has
    assert {tensor.dtype for tensor in tensors(b).values()} == {torch.bfloat16}
    folder = merged(a, b)
    assert {tensor.dtype for tensor in tensors(folder).values()} == {torch.float32}
    assert numbers(folder) == {1.00390625}  # 1 + 2^-8, which bfloat16 does not have


def test_small_differences_outlive_a_large_weight_in_float64(tmp_path, merged):
    a, b = save(tmp_path / "a", filled(1.0)), save(tmp_path / "b", filled(1.0 + 2**-23))
    # 1e6 * (1 + 2^-23) - 999999 = 1 + 0.11920929: float32 products of a million are 1/16 apart
    (number,) = numbers(merged(a, b, "--weights", "-999999", "1000000"))
    assert number == pytest.approx(1.11920929, abs=1e-6)


def test_tied_models_stay_tied(tmp_path, merged):
    tied = dataclasses.replace(CFG, tie_embeddings=True)
    a, b = save(tmp_path / "a", filled(1.0, tied)), save(tmp_path / "b", filled(3.0, tied))
    folder = merged(a, b)
    assert "lm_head.weight" not in tensors(folder)
    assert numbers(folder) == {2.0}
    decoder = open_model(folder).decoder
    assert decoder.cfg.tie_embeddings
    assert decoder.head.weight is decoder.embedding.weight


# where models come from


def test_a_run_its_checkpoint_and_a_hugging_face_folder(run, tmp_path, merged):
    state = safetensors_torch.load_file(next(run.glob("checkpoints/*/weights-00000.safetensors")))
    a = save(tmp_path / "a", filled(1.0))
    checkpoint = run / "checkpoints" / f"tokens-{CONSUMED:015d}"
    result = tensors(merged(a, run, checkpoint, "--weights", "0.5", "0.25", "0.25"))
    embedding = 0.5 + 0.5 * state["embedding.weight"].double()
    assert torch.equal(result["model.embed_tokens.weight"], embedding.float())
    gate = 0.5 + 0.5 * state["blocks.2.feed_forward.gate.weight"].double()
    assert torch.equal(result["model.layers.2.mlp.gate_proj.weight"], gate.float())


def test_the_merged_folder_computes_in_transformers_what_it_does_here(run, tmp_path, merged):
    folder = merged(run, save(tmp_path / "b", drawn(2)))
    model = open_model(folder)
    assert_same_logits(model.decoder, opened(folder), (9, 60))
    assert model.train_len == 64
    assert model.method == "rope+plain"


# positions


@pytest.fixture
def original(tmp_path):
    return save(tmp_path / "original", drawn(1), train_len=64)


@pytest.fixture
def extended(tmp_path):
    return save(tmp_path / "extended", drawn(2, theta=5e6), train_len=512)


@pytest.mark.parametrize(("kept", "theta", "train_len"), [("original", 500.0, 64), ("extended", 5e6, 512)])
def test_the_positions_named_are_kept(kept, theta, train_len, original, extended, merged):
    folder = merged(original, extended, "--positions", {"original": original, "extended": extended}[kept])
    model = open_model(folder)
    assert (model.decoder.frequencies.theta, model.train_len) == (theta, train_len)
    half = 0.5 * tensors(original)["lm_head.weight"].double() + 0.5 * tensors(extended)["lm_head.weight"].double()
    assert torch.equal(tensors(folder)["lm_head.weight"], half.float())
    assert_same_logits(model.decoder, opened(folder), (9, 60))


def test_a_window_that_is_given_is_written(tmp_path, original, extended, merged):
    assert open_model(merged(original, extended, "--positions", original, "--train_len", 640)).train_len == 640
    shutil.rmtree(tmp_path / "merged")
    other = save(tmp_path / "other", drawn(2), train_len=128)
    assert open_model(merged(original, other, "--train_len", 96)).train_len == 96


def test_the_length_of_dynamic_ntk_is_its_own(prepared, tmp_path, merged, refused):
    method = {"frequency": {"method": "dynamic_ntk", "factor": 4.0, "train_len": 32}}
    run = write_run(tmp_path / "dynamic", prepared, position=method)  # trained with windows of 64
    refused(run, run, "--train_len", 96, rules=["train_len=96: must be 32, that of the frequencies"])
    assert open_model(merged(run, run)).method == "dynamic_ntk(factor=4,train_len=32)+plain"


def test_a_method_with_parameters_is_kept(tmp_path, original, merged):
    yarn = save(tmp_path / "yarn", drawn(2, method="yarn", factor=4.0, train_len=64), train_len=None)
    model = open_model(merged(original, yarn, "--positions", yarn))
    assert model.method == "yarn(factor=4,train_len=64)+plain"
    assert model.train_len == 256


def test_a_distance_method_can_be_left_for_the_plain_one_of_another_model(run, prepared, tmp_path, merged):
    string = {"distance": {"method": "string", "shift": 20, "window": 4}}
    other = write_run(tmp_path / "string", prepared, position=string, theta=500.0)
    assert open_model(merged(run, other, "--positions", run)).method == "rope+plain"


# tokenizers


def test_a_tokenizer_that_models_share_is_copied(bpe, tmp_path, merged):
    folders = [save(tmp_path / name, filled(1.0)) for name in "abc"]
    for folder in folders[1:]:
        bpe.save(str(folder / "tokenizer.json"))
    folder = merged(*folders)
    assert (folder / "tokenizer.json").read_bytes() == (folders[1] / "tokenizer.json").read_bytes()


def test_ids_that_begin_and_end_a_text_are_those_of_the_first_model_that_has_them(run, tmp_path, merged):
    plain, stopping = save(tmp_path / "a", filled(1.0)), tmp_path / "b"
    save_pretrained(filled(1.0), stopping, train_len=64, token_ids={"bos_token_id": 3, "eos_token_id": [5, 7]})
    own = open_model(run).tokenizer
    for models, ids in (
        ((plain, plain), (None, None)),
        ((plain, stopping), (3, [5, 7])),
        ((run, stopping), (own.token_to_id("<bos>"), own.token_to_id("<eos>"))),
    ):
        folder = merged(*models)
        settings = json.loads((folder / "config.json").read_text())
        shutil.rmtree(folder)
        assert (settings["bos_token_id"], settings["eos_token_id"]) == ids


# mistakes


@pytest.fixture
def refused(tmp_path, capsys):
    """A function that merges in vain and compares what is said with rules."""

    def merge(*words, rules, output=None):
        folder = output or tmp_path / "merged"
        before = sorted(tmp_path.rglob("*"))
        assert main([*map(str, words), "-o", str(folder)]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"
        check_faults(without_bars(told.err), rules)

    return merge


TOO_FEW, WHOLE = "must be two models or more, before the options", "must be a whole number of tokens >= 1"
MISTAKES = {
    "a": f"MODEL=a: {TOO_FEW}",
    "a b": "-o: must be given, the folder to write",
    "a b -o": "-o: has no value",
    "a b -o c --positions": "--positions: has no value",
    "a b -o c --train_len 0": f"--train_len=0: {WHOLE}",
    "a b -o c --train_len 1e3": f"--train_len=1e3: {WHOLE}",
    "a b --dtype=bf16 -o c": "--dtype=bf16: not an option",
    "--weights 1 0 a b -o c": f"MODEL=: {TOO_FEW}",
    "a b --positions c -o c": "--positions=c: must be one of the models; use one of a, b",
    "a b --weights 0.5 -o c": "--weights=0.5: must be 2 numbers, one for each model",
    "a b -o c --weights": "--weights: has no value",
    "a b --weights half 0.5 -o c": "--weights=half 0.5: must be numbers",
    "a b --weights nan 1 -o c": "--weights=nan 1: must be finite",
    "a b --weights inf 0 -o c": "--weights=inf 0: must be finite",
    "a b --weights 0.5 0.6 -o c": "--weights=0.5 0.6: must sum to 1, not 1.1",
    "a b -o c": "a: no such folder",
}


@pytest.mark.parametrize(("words", "rule"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_on_the_command_line_is_one_line(words, rule, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    check_faults(without_bars(told.err), [rule])


def test_shares_may_be_rounded_decimals():
    assert read_shares(["0.3333333"] * 3, 3) == [0.3333333] * 3
    assert sum(read_shares(["0.1"] * 10, 10)) != 1.0


def test_a_folder_that_cannot_be_filled_is_refused(original, tmp_path, refused):
    (tmp_path / "full").mkdir()
    notes, inside = tmp_path / "full" / "notes.txt", original / "config.json" / "merged"
    notes.touch()
    for folder in (tmp_path / "full", notes):
        refused(original, original, output=folder, rules=[f"{folder}: is not empty"])
    refused(original, original, output=inside, rules=[f"{inside}: cannot be written (Not a directory)"])


FEED_FORWARD = "blocks.0.feed_forward.{}.weight: {} in {{b}}, {} in {{a}}"
OTHER = {  # changes of the second model, and the faults
    "shapes": (
        {"n_layers": 1, "d_ff": 20},
        *(FEED_FORWARD.format(part, "20 x 16", "24 x 16") for part in ("gate", "up")),
        FEED_FORWARD.format("out", "16 x 20", "16 x 24"),
        "blocks.1.attention_norm.weight: missing in {b}, 16 in {a}",
        *(
            f"blocks.1.attention.{x}.weight: missing in {{b}}, {n} x 16 in {{a}}"
            for x, n in (("q", 16), ("k", 8), ("v", 8), ("out", 16))
        ),
        "13 more weights do not match",  # of the 9 weights of each lost block, 18 in all, 5 are named
    ),
    "heads": (
        {"n_heads": 2, "n_kv_heads": 1},
        "model.n_heads: 2 in {b}, 4 in {a}",
        "model.n_kv_heads: 1 in {b}, 2 in {a}",
    ),
    "norm_eps": ({"norm_eps": 1e-6}, "model.norm_eps: 1e-06 in {b}, 1e-05 in {a}"),
    "tied": ({"tie_embeddings": True}, "model.tie_embeddings: True in {b}, False in {a}"),
}


@pytest.mark.parametrize(("changes", "rules"), [(c, rules) for c, *rules in OTHER.values()], ids=OTHER)
def test_other_shapes_and_settings_are_refused_by_name(changes, rules, original, tmp_path, refused):
    other = save(tmp_path / "other", drawn(1, dataclasses.replace(CFG, **changes)))
    refused(original, other, rules=[rule.format(a=original, b=other) for rule in rules])


def test_weights_that_only_a_later_model_has_are_refused_by_name(original, tmp_path, refused):
    biased = save(tmp_path / "biased", filled(1.0, dataclasses.replace(CFG, n_layers=3, qkv_bias=True)))
    first = f"blocks.0.attention.q.bias: 16 in {biased}, missing in {original}"
    refused(original, original, biased, rules=[first, *[""] * 7, "1 more weights do not match"])


def test_positions_must_be_chosen_where_they_differ_and_only_there(tmp_path, original, extended, refused):
    method = "has rope+plain at theta"
    both = f"({original} {method} 500.0, {extended} {method} 5000000.0)"
    refused(original, extended, rules=[f"--positions: must be given, the positions differ {both}"])
    last_digits = save(tmp_path / "other", drawn(1, theta=500.0000001))
    refused(original, last_digits, rules=["--positions: must be given, the positions differ ("])
    alike = f"--positions={original}: would be ignored, all models have rope+plain at theta 500.0"
    refused(original, original, "--positions", original, rules=[alike])


def test_a_distance_method_is_refused(prepared, tmp_path, refused):
    string = {"distance": {"method": "string", "shift": 20, "window": 4}}
    run = write_run(tmp_path / "string", prepared, position=string)
    refused(run, run, rules=["distance=string: not supported by a Hugging Face folder"])


def test_other_tokenizers_are_refused(bpe, original, tmp_path, refused):
    other = shutil.copytree(original, tmp_path / "other")
    bpe.save(str(original / "tokenizer.json"))
    bpe.save(str(other / "tokenizer.json"))
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    assert text.count('"<eos>"') > 1
    (other / "tokenizer.json").write_text(text.replace('"<eos>"', '"<end>"'), encoding="utf-8")
    refused(original, other, rules=[f"{other}: its tokenizer is not that of {original} (2 entries differ)"])


def test_the_longest_window_is_written_where_positions_are_alike(tmp_path, merged):
    folders = [save(tmp_path / str(n), filled(1.0), train_len=n) for n in (64, 512, 128)]
    assert open_model(merged(*folders)).train_len == 512


def test_an_empty_folder_is_filled(original, tmp_path, merged):
    (tmp_path / "merged").mkdir()
    assert_same_bits(merged(original, original), original)
