"""Merged models: every weight a weighted sum, positions that are chosen, and a line for every mistake."""

import dataclasses
import json

import pytest
import torch

from lab.loading import open_model
from lab.merge import MergeOptions, main
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.huggingface import save_pretrained
from lab.positions import frequencies
from tests.model.folders import assert_same_logits, opened, safetensors_torch
from tests.opened import SIZES, write_run
from tests.refusals import check_faults

CFG = DecoderConfig(**SIZES, vocab_size=400)
OTHER = {  # changes of the second model, and the faults
    "shapes": ({"n_layers": 1, "d_ff": 20}, ["model.n_layers: 1 in {b}, 3 in {a}", "model.d_ff: 20 in {b}, 24 in {a}"]),
    "theta": ({"theta": 900.0}, ["--positions: must be given, the positions differ ({{}}"]),
}


def drawn(seed, cfg=CFG, method="rope", number=None, **parameters):
    """A decoder whose weights are drawn, or all one number."""
    own = frequencies(method, head_dim=cfg.head_dim, **{"theta": 500.0, **parameters})
    decoder, generator = Decoder(cfg, frequencies=own, seed=None), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(torch.empty(parameter.shape).normal_(float("norm" in name), 0.3, generator=generator))
            if number is not None:
                parameter.fill_(number)
    return decoder


def save(folder, decoder, train_len=64):
    save_pretrained(decoder, folder, train_len=train_len)
    return folder


def tensors(folder):
    return safetensors_torch.load_file(folder / "model.safetensors")


def numbers(folder):
    return {number for tensor in tensors(folder).values() for number in tensor.unique().tolist()}


@pytest.fixture
def merged(tmp_path, capsys):
    """A function that merges into a new folder and returns it."""

    def merge(*words, into="merged"):
        folder = tmp_path / into
        assert main([*map(str, words), "-o", str(folder)]) == 0
        assert capsys.readouterr().out.startswith(f"{folder}: ")
        return folder

    return merge


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", prepared, theta=500.0)


def test_sums_are_exact(tmp_path, merged):
    decoder = drawn(1)
    with torch.no_grad():  # both zeros, the smallest number above zero and the largest of all
        decoder.norm.weight[:4] = torch.tensor([-0.0, 0.0, 1e-45, torch.finfo(torch.float32).max])
    a = save(tmp_path / "a", decoder)
    for name, tensor in tensors(merged(a, a, a, into="same")).items():
        assert torch.equal(tensor.view(torch.int32), tensors(a)[name].view(torch.int32)), name
    a = save(tmp_path / "b", drawn(0, number=1.0).to(torch.bfloat16))
    b = save(tmp_path / "c", drawn(0, number=1.0078125).to(torch.bfloat16))  # 1 + 2^-7, the next that bfloat16 has
    assert numbers(merged(a, b, into="half")) == {1.00390625}  # 1 + 2^-8, which bfloat16 does not have
    a, b = save(tmp_path / "d", drawn(0, number=1.0)), save(tmp_path / "e", drawn(0, number=1.0 + 2**-23))
    # 1e6 * (1 + 2^-23) - 999999 = 1 + 0.11920929: float32 products of a million are 1/16 apart
    (number,) = numbers(merged(a, b, "--weights=-999999,1000000", into="far"))
    assert number == pytest.approx(1.11920929, abs=1e-6)


def test_tied_models_stay_tied(tmp_path, merged):
    tied = dataclasses.replace(CFG, tie_embeddings=True)
    folder = merged(*(save(tmp_path / str(n), drawn(0, tied, number=n)) for n in (1.0, 3.0)))
    assert "lm_head.weight" not in tensors(folder)
    assert numbers(folder) == {2.0}
    decoder = open_model(folder).decoder
    assert decoder.head.weight is decoder.embedding.weight


def test_runs_checkpoints_and_folders_merge_and_transformers_computes_the_same(run, tmp_path, merged):
    a, checkpoint = save(tmp_path / "a", drawn(1)), next(run.glob("checkpoints/tokens-*"))
    folder = merged(a, run, checkpoint, "--weights=0.5,0.25,0.25")
    own = safetensors_torch.load_file(checkpoint / "weights-00000.safetensors")
    half = 0.5 * tensors(a)["lm_head.weight"].double() + 0.5 * own["head.weight"].double()
    torch.testing.assert_close(tensors(folder)["lm_head.weight"].double(), half, rtol=1e-6, atol=1e-8)
    model = open_model(folder)
    assert_same_logits(model.decoder, opened(folder), (9, 60))
    assert (model.train_len, model.method) == (64, "rope+plain")
    settings = json.loads((folder / "config.json").read_text())
    ids = open_model(run).tokenizer.token_to_id
    assert (settings["bos_token_id"], settings["eos_token_id"]) == (ids("<bos>"), ids("<eos>"))


def test_the_positions_named_are_kept(prepared, tmp_path, merged):
    original, extended = save(tmp_path / "a", drawn(1)), save(tmp_path / "b", drawn(2, theta=5e6), train_len=512)
    for kept, theta, train_len in ((original, 500.0, 64), (extended, 5e6, 512)):
        model = open_model(merged(original, extended, "--positions", kept, into=f"of_{kept.name}"))
        assert (model.decoder.frequencies.theta, model.train_len) == (theta, train_len)
    given = merged(original, extended, "--positions", original, "--train_len", 640, into="given")
    assert open_model(given).train_len == 640
    yarn = save(tmp_path / "yarn", drawn(2, method="yarn", factor=4.0, train_len=64), train_len=None)
    model = open_model(merged(original, yarn, "--positions", yarn, into="yarned"))
    assert (model.method, model.train_len) == ("yarn(factor=4,train_len=64)+plain", 256)
    method = {"frequency": {"method": "dynamic_ntk", "factor": 4.0, "train_len": 32}}
    run = write_run(tmp_path / "dynamic", prepared, position=method)  # trained with windows of 64
    assert open_model(merged(run, run, into="dynamics")).method == "dynamic_ntk(factor=4,train_len=32)+plain"


def test_a_tokenizer_that_models_share_is_copied(bpe, tmp_path, merged):
    folders = [save(tmp_path / name, drawn(0)) for name in "abc"]
    for folder in folders[1:]:
        bpe.save(str(folder / "tokenizer.json"))
    folder = merged(*folders)
    assert (folder / "tokenizer.json").read_bytes() == (folders[1] / "tokenizer.json").read_bytes()


MISTAKES = {
    "a": "MODEL=a: must be two models or more, before the options",
    "a b": "-o: must be given, the folder to write",
    "a b --positions=c -o c": "--positions=c: must be one of the models; use one of a, b",
    "a b --weights=1.0 -o c": "--weights=[1.0]: must be 2 numbers, one for each model",
    "a b --weights=0.5,0.6 -o c": "--weights=[0.5, 0.6]: must sum to 1, not 1.1",
    "a b -o c": "a: no such folder",
}


@pytest.mark.parametrize(("words", "rule"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_on_the_command_line_is_one_line(words, rule, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    check_faults(capsys.readouterr().err.splitlines(), [rule])
    assert MergeOptions(weights=(0.3333333,) * 3), "rounded decimals"


@pytest.mark.parametrize(("changes", "rules"), OTHER.values(), ids=OTHER)
def test_models_that_differ_are_refused_by_name(changes, rules, tmp_path, capsys):
    a, b = save(tmp_path / "a", drawn(1)), tmp_path / "b"
    save(b, drawn(1, dataclasses.replace(CFG, **changes), theta=changes.get("theta", 500.0)))
    assert main([str(a), str(b), "-o", str(tmp_path / "out")]) == 2
    check_faults(capsys.readouterr().err.splitlines(), [rule.format(a=a, b=b) for rule in rules])
    assert not (tmp_path / "out").exists()


def test_other_tokenizers_and_full_folders_are_refused(bpe, run, tmp_path, capsys):
    a, b = save(tmp_path / "a", drawn(1)), save(tmp_path / "b", drawn(1))
    (a / "tokenizer.json").write_text(bpe.to_str())
    (b / "tokenizer.json").write_text(bpe.to_str().replace("<eos>", "<end>"))
    assert main([str(run), str(a), str(b), "-o", str(tmp_path / "out")]) == 2
    assert f"{b}: its tokenizer is not that of {a}" in capsys.readouterr().err
    assert main([str(run), str(run), "-o", str(a)]) == 2
    assert f"{a}: is not empty" in capsys.readouterr().err
