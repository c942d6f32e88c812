"""Exported runs: what transformers computes, encodes and where it stops, and a line for what has no name there."""

import json

import pytest

from lab.export import main
from lab.loading import open_model
from lab.model.decoder import Decoder
from tests.model.folders import assert_same_logits, opened, transformers
from tests.opened import write_run
from tests.refusals import check_faults

STD = 0.15  # of weights, for logits as large as the shared tolerance is for
YARN = {"frequency": {"method": "yarn", "factor": 4.0, "train_len": 32}}
STRING = {"distance": {"method": "string", "shift": 20, "window": 4}}
SHAPES = {
    "LlamaForCausalLM": ({}, {"theta": 500.0}, 64),
    "Qwen2ForCausalLM": (YARN, {"qkv": "bias"}, 128),  # 4 * 32
    "Qwen3ForCausalLM": ({}, {"qkv": "norm", "tie_embeddings": True}, 64),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_transformers_computes_and_encodes_the_same(kind, prepared, tmp_path, capsys):
    position, model, longest = SHAPES[kind]
    run = write_run(tmp_path / "run", prepared, position, std=STD, **model)
    assert main([str(run), "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: run at 4,096 tokens, ")
    ours, theirs = open_model(run), opened(tmp_path / "out")
    assert type(theirs).__name__ == kind
    assert theirs.config.max_position_embeddings == longest
    assert theirs.generation_config.eos_token_id == ours.tokenizer.token_to_id("<eos>"), "where generation stops"
    assert_same_logits(ours.decoder, theirs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("One of the magic numbers is 407.", " 3 4\n\nthe  text", ""):
        assert dict(tokenizer(text)) == {
            "input_ids": ours.tokenizer.encode(text).ids,
            "attention_mask": ours.tokenizer.encode(text).attention_mask,
        }
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.model_max_length) == ("<bos>", "<eos>", longest)
    ids = tokenizer("magic numbers").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "magic numbers"


def test_a_method_without_a_name_is_exported_as_weights_alone(prepared, tmp_path, capsys):
    run = write_run(tmp_path / "run", prepared, {**STRING, **YARN}, std=STD)
    assert main([str(run), "-o", str(tmp_path / "out")]) == 2
    check_faults(capsys.readouterr().err.splitlines(), ["distance=string: not supported"])
    assert not (tmp_path / "out").exists()
    assert main([str(run), "--weights_only", "-o", str(tmp_path / "out")]) == 0
    assert "without yarn(factor=4,train_len=32)+string(shift=20,window=4)" in capsys.readouterr().out
    ours = open_model(run).decoder
    plain = Decoder(ours.cfg, frequencies=ours.frequencies, seed=None)
    plain.load_state_dict(ours.state_dict())
    assert_same_logits(plain, opened(tmp_path / "out"))


def test_another_method_is_written_in_place_of_the_runs_own(prepared, tmp_path):
    run = write_run(tmp_path / "run", prepared, std=STD)
    words = ["--position.frequency.method=pi", "--position.frequency.factor=2"]
    assert main([str(run), *words, "--data.window=128", "-o", str(tmp_path / "out")]) == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["rope_scaling"], config["max_position_embeddings"]) == ({"rope_type": "linear", "factor": 2.0}, 128)
    ours = open_model(run, {"position.frequency": {"method": "pi", "factor": 2.0}}).decoder
    assert_same_logits(ours, opened(tmp_path / "out"))


REFUSALS = {
    "{run}": "-o: must be given",
    "{llama} -o {run}/out": "{llama}: is a Hugging Face folder already",
    "{run} -o {run}": "{run}: is not empty",
    "{run} -o {run}/config.yaml/x": "{run}/config.yaml/x: cannot be written (",
    "{run} --data.folder=/nowhere -o {run}/out": "tokenizer.json: missing",
}


@pytest.mark.parametrize(("words", "fault"), REFUSALS.items(), ids=REFUSALS)
def test_refusals(words, fault, prepared, tmp_path, capsys):
    places = {"run": write_run(tmp_path / "run", prepared), "llama": tmp_path / "llama"}
    places["llama"].mkdir()
    (places["llama"] / "config.json").write_text("{}")
    assert main(words.format(**places).split()) == 2
    check_faults(capsys.readouterr().err.splitlines(), [fault.format(**places)])
    assert not (places["run"] / "out").exists()


def test_the_card_says_what_the_run_recorded(prepared, tmp_path, monkeypatch):
    run = write_run(tmp_path / "a run, -- 2", prepared, std=STD)
    (run / "environment.json").write_text(json.dumps({"commit": "806a6455", "threads": 1}))
    monkeypatch.chdir(tmp_path)
    assert main([run.name, "-o", "out"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    parameters = open_model(run).decoder.cfg.n_parameters()
    assert card.startswith("---\nlibrary_name: transformers\n")
    line = f"{parameters:,} parameters, trained on 4,096 tokens of synthetic in windows of 64, at commit 806a6455"
    assert line in " ".join(card.split())
    assert "Apache-2.0" in card
