"""Runs that start from trained weights: what they take over, what they refuse, and what they begin with."""

import dataclasses
import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from lab.config import load_experiment
from lab.core.errors import CheckpointError, ConfigError
from lab.core.yaml import format_yaml
from lab.data.config import TokenizerFile
from lab.data.preparation import prepare
from lab.loading import open_model, read_weights, start_from
from lab.model.config import DecoderConfig, LayersConfig
from lab.model.decoder import Decoder
from lab.model.huggingface import save_pretrained
from lab.train.probe import check_haystack
from lab.train.starting import check_vocabulary, room_warning
from tests.fits import SPEED, load, records
from tests.forked import python
from tests.opened import CONSUMED, SIZES, write_source
from tests.refusals import check_faults, refused

TRAIN = {"tokens": 4096, "batch_tokens": 512, "micro_batch_tokens": 256, "checkpoint_every_tokens": 2048}
TRAIN |= {"accelerator": "cpu", "precision": "fp32", "threads": 1}
LONG_STEPS = {"tokens": 200 * 32_768, "batch_tokens": 32_768, "micro_batch_tokens": 32_768}
LONG = {"data": {"window": 32_768}, "train": LONG_STEPS}


@pytest.fixture(scope="module")
def source(prepared, tmp_path_factory):
    """A run folder with a tokenizer, as training writes it: window 64, theta 500."""
    return write_source(tmp_path_factory.mktemp("runs") / "source", prepared, theta=500.0)


@pytest.fixture
def hub(source, tmp_path):
    """The same weights as a Hugging Face folder."""
    folder = tmp_path / "hub"
    save_pretrained(open_model(source).decoder, folder, train_len=64)
    shutil.copy(source / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return folder


@pytest.fixture
def write(tmp_path, prepared):
    """A function that writes a config that starts somewhere, and returns its path."""

    def write(path, name="run", **sections):
        corpus = dataclasses.asdict(prepared.corpus)
        data = {"corpus": corpus, "window": 64, "held_out_frac": 0.1, "folder": prepared.folder, "look_ahead": 32}
        own = {"run": {"folder": str(tmp_path / "runs")}, "start": {"path": str(path)}}
        own |= {"data": data | sections.pop("data", {})}
        file = tmp_path / f"{name}.yaml"
        file.write_text(format_yaml({**own, **sections}))
        return file

    return write


@pytest.mark.parametrize("kind", ["run", "checkpoint", "hub"])
def test_shape_positions_and_tokenizer_are_taken_over(kind, source, hub, write):
    path = {"run": source, "checkpoint": source / "checkpoints" / f"tokens-{CONSUMED:015d}", "hub": hub}[kind]
    experiment, theirs = load_experiment(write(path)), load_experiment(source / "config.yaml")
    assert experiment.model == theirs.model
    assert experiment.position == theirs.position
    file = (hub if kind == "hub" else source) / "tokenizer.json"
    assert experiment.data.tokenizer == TokenizerFile(path=str(file), eos="<eos>")
    changes = {"position.distance.method": "rerope", "position.distance.window": 9}
    own = load_experiment(write(path, model={"theta": 300.0}), changes)
    assert (own.model.theta, own.position.distance.method) == (300.0, "rerope"), "the config goes first"


@pytest.mark.parametrize("window", [64, 128])
def test_a_sliding_window_is_taken_over_even_if_no_row_of_training_exceeds_it(hub, write, window):
    config = json.loads((hub / "config.json").read_text())
    (hub / "config.json").write_text(json.dumps(config | {"model_type": "mistral", "sliding_window": 64}))
    experiment = load_experiment(write(hub, data={"window": window}))
    assert experiment.model.layers == LayersConfig(pattern=("window",), window=64)
    assert load_experiment(write(hub, model={"layers": None})).model.layers is None
    with refused("position.distance.method=rerope: would change nothing{}", error=ConfigError):
        load_experiment(write(hub), {"position.distance.method": "rerope", "position.distance.window": 9})


def test_what_contradicts_the_source_is_a_line_each(source, hub, write, tmp_path):
    for path in (source, hub):
        weights = f"the weights of start.path={path} have"
        with refused(f"model.d_model=32: {weights} 16", f"model.d_ff=64: {weights} 24", error=ConfigError):
            load_experiment(write(path, model={"d_model": 32, "n_heads": 4, "d_ff": 64}))
    with refused(f"start.path={tmp_path / 'x'}: no such folder", error=CheckpointError):
        load_experiment(write(tmp_path / "x"))
    (hub / "tokenizer.json").unlink()
    with refused("data.tokenizer: must be set, start.path={}", error=ConfigError):
        load_experiment(write(hub))


def test_a_tokenizer_of_another_vocabulary_is_one_line(source, write, tmp_path):
    experiment = load_experiment(write(source))
    prepare(experiment.data, progress=False)
    check_vocabulary(experiment)
    with refused("model.vocab_size=300: the tokenizer's largest id is 399; use 400", error=ConfigError):
        check_vocabulary(dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, vocab_size=300)))
    other = shutil.copytree(source, tmp_path / "other")
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(text.replace('"<bos>"', '"<start>"'), encoding="utf-8")
    tokenizer = {"method": "file", "path": str(source / "tokenizer.json"), "eos": "<eos>"}
    rule = f"data.tokenizer: is not the one that start.path={other} was trained with (2 entries"
    with refused(rule, error=ConfigError):
        check_vocabulary(load_experiment(write(other, data={"tokenizer": tokenizer})))


def test_weights_are_those_of_the_source_and_others_are_named(source, hub):
    theirs = load_file(next(source.glob("checkpoints/*/weights-00000.safetensors")))
    for path in (source, hub):
        decoder = Decoder(load_experiment(source / "config.yaml").model, seed=5)
        start_from(decoder, path)
        own = decoder.state_dict()
        assert own.keys() == theirs.keys() == read_weights(path).keys()
        assert all(torch.equal(own[name], theirs[name]) for name in own)
    with pytest.raises(ConfigError) as caught:
        start_from(Decoder(DecoderConfig(**{**SIZES, "d_ff": 20, "n_layers": 4}, vocab_size=400)), source)
    check_faults(caught.value.errors[:1], [f"start.path={source}: Missing key(s) in state_dict: {{}}"])
    assert len(caught.value.errors) == 8


def test_a_run_begins_with_the_sources_weights_and_resumes_without_the_source(source, write, tmp_path):
    there = shutil.copytree(source, tmp_path / "there")
    probe = {"every_tokens": None, "tests": 1, "step": 16, "max_length": 224, "loss_tokens": 0}
    still = {"lr": 1e-30, "min_lr": 0.0, "warmup_steps": 1}  # changes no float32 weight
    file = write(there, train=TRAIN, optim=still, probe=probe, track={"every_steps": 1})
    assert python("-m", "lab.fit", file).returncode == 0
    folder = tmp_path / "runs" / "run"
    first, last = sorted((folder / "checkpoints").glob("tokens-*"))
    assert all(torch.equal(tensor, read_weights(source)[name]) for name, tensor in read_weights(first).items())
    whole = records(folder, without=SPEED)
    shutil.rmtree(there)
    shutil.rmtree(last)
    assert python("-m", "lab.fit", folder / "config.yaml", "--resume").returncode == 0
    assert records(folder, without=SPEED) == whole


@pytest.mark.parametrize(("pack", "warning"), [(250, "train.micro_batch_tokens=250: holds 192 tokens"), (256, "None")])
def test_full_windows_that_leave_a_part_of_each_pack_empty_are_a_warning(pack, warning):
    sizes = (f"--train.batch_tokens={pack}", f"--train.micro_batch_tokens={pack}")
    assert str(room_warning(load("--data.mode=concatenated", "--data.window=64", *sizes))).startswith(warning)


def test_a_resumed_run_hides_numbers_in_the_text_of_its_earlier_probes(tmp_path):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    run.mkdir()
    experiment = load("--run.name=run", f"--run.folder={tmp_path}", f"--probe.haystack={text}")
    text.write_text("one two")
    (run / "probes.jsonl").write_text("")
    check_haystack(experiment)
    probe = {"consumed_tokens": 1, "haystack": hashlib.sha256(b"one two").hexdigest()[:16]}
    (run / "probes.jsonl").write_text(json.dumps(probe) + '\n{"consumed_tokens": 2}\n')
    check_haystack(experiment)
    text.write_text("one three")
    with refused(f"probe.haystack={text}: is not the text of the run's earlier probes; {{}}", error=ConfigError):
        check_haystack(experiment)
    (run / "haystack.txt").write_text("one two")
    check_haystack(experiment)
