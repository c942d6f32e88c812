"""Runs that start from trained weights: what they take over, what they refuse, and what they begin with."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.nn import functional as F

from lab.config import load_experiment
from lab.data.config import Bpe, TokenizerFile
from lab.data.module import PackedData
from lab.data.preparation import prepare, shard_folder
from lab.errors import CheckpointError, ConfigError
from lab.loading import open_model, read_weights, start_from
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.huggingface import save_pretrained
from lab.source import base_for
from lab.train.starting import check_vocabulary
from tests.fits import records
from tests.forked import python
from tests.opened import CONSUMED, SIZES, write_run
from tests.refusals import check_faults, refused

LOSS_TOLERANCE = 1e-5  # of a mean near 6 nats: float32, in packs against one row at a time
TRAIN = {"tokens": 4096, "batch_tokens": 512, "micro_batch_tokens": 256, "checkpoint_every_tokens": 2048}
TRAIN |= {"accelerator": "cpu", "precision": "fp32", "threads": 1}
OWN = {"method": "bpe", "vocab_size": 400, "sample_documents": 100}
PI = {"frequency": {"method": "pi", "factor": 2.0}}


@pytest.fixture(scope="module")
def source(prepared, tmp_path_factory):
    """A run folder with a tokenizer, as training writes it: window 64, theta 500."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "source", prepared, theta=500.0, head_chunk=32)
    shutil.copy(shard_folder(prepared) / "tokenizer.json", folder)
    experiment = load_experiment(folder / "config.yaml")
    (folder / "config.yaml").write_text(experiment.to_yaml())
    return folder


@pytest.fixture(scope="module")
def extended(prepared, tmp_path_factory):
    """A run folder whose frequency method is not plain RoPE."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "extended", prepared, position=PI)
    (folder / "config.yaml").write_text(load_experiment(folder / "config.yaml").to_yaml())
    return folder


@pytest.fixture
def hub(source, tmp_path):
    """The same weights as a Hugging Face folder of 64 positions."""
    pytest.importorskip("safetensors")
    folder = tmp_path / "hub"
    save_pretrained(open_model(source).decoder, folder, train_len=64)
    shutil.copy(source / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return folder


@pytest.fixture
def write(tmp_path, prepared):
    """A function that writes a config that starts somewhere, and returns its path."""

    def write(path, name="run", **sections):
        data = {
            "corpus": dataclasses.asdict(prepared.corpus),
            "window": 64,
            "held_out_frac": 0.1,
            "folder": prepared.folder,
            "look_ahead": 32,
        }
        values = {
            "run": {"folder": str(tmp_path / "runs")},
            "start": {"path": str(path)},
            "data": data | sections.pop("data", {}),
        }
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**values, **sections}))
        return file

    return write


def long_train(window):
    return {"tokens": 200 * window, "batch_tokens": window, "micro_batch_tokens": window}


# what is taken over


@pytest.mark.parametrize("kind", ["run", "checkpoint"])
def test_a_run_is_taken_over(kind, source, write):
    path = source if kind == "run" else source / "checkpoints" / f"tokens-{CONSUMED:015d}"
    experiment, theirs = load_experiment(write(path)), load_experiment(source / "config.yaml")
    assert experiment.model == theirs.model
    assert (experiment.model.theta, experiment.model.head_chunk, experiment.model.vocab_size) == (500.0, 32, 400)
    assert experiment.position == theirs.position
    assert experiment.data.tokenizer == TokenizerFile(path=str(source / "tokenizer.json"), eos="<eos>")
    assert experiment.start.path == str(path)


@pytest.mark.parametrize("eos", ["<eos>", {"content": "<eos>", "lstrip": False}], ids=["text", "token"])
def test_a_hugging_face_folder_is_taken_over(eos, source, hub, write):
    (hub / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    experiment = load_experiment(write(hub))
    theirs = load_experiment(source / "config.yaml").model
    assert experiment.model == DecoderConfig(**{**vars(theirs), "head_chunk": DecoderConfig.head_chunk})
    assert experiment.position.frequency.method == "rope"
    assert experiment.data.tokenizer == TokenizerFile(path=str(hub / "tokenizer.json"), eos="<eos>")


def test_what_the_config_says_goes_before_the_source(extended, write):
    file = write(
        extended,
        model={"theta": 300.0, "head_chunk": 64, "d_model": 16},
        position={"frequency": {"method": "abf", "theta": 1e5}},
        data={"tokenizer": OWN},
    )
    experiment = load_experiment(file, {"position.distance.method": "rerope", "position.distance.window": 9})
    assert (experiment.model.theta, experiment.model.head_chunk) == (300.0, 64)
    assert experiment.position.frequency.method == "abf"
    assert experiment.position.distance.method == "rerope"
    assert experiment.data.tokenizer == Bpe(**OWN)
    assert load_experiment(file, {"model.theta": 200.0}).model.theta == 200.0


# the rotary base


BASES = {  # arXiv:2411.13476: 1M for 32K, 5M for 64K, 10M for 128K, and 50M for 256K
    16_383: None,
    16_384: 1e6,
    32_768: 1e6,
    32_769: 5e6,
    65_536: 5e6,
    65_537: 1e7,
    131_072: 1e7,
    131_073: 5e7,
    262_144: 5e7,
    1_000_000: 5e7,
}


def test_the_table_of_bases():
    assert {length: base_for(length) for length in BASES} == BASES


@pytest.mark.parametrize("kind", ["run", "hugging_face"])
def test_a_longer_window_takes_the_base_of_its_length(kind, source, hub, write):
    path = {"run": source, "hugging_face": hub}[kind]
    experiment = load_experiment(write(path, data={"window": 32_768}, train=long_train(32_768)))
    assert (experiment.model.theta, experiment.position.frequency.method) == (1e6, "rope")
    assert load_experiment(write(path, data={"window": 128})).model.theta == 500.0
    on_the_command_line = {"data.window": 65_536, **{f"train.{k}": v for k, v in long_train(65_536).items()}}
    assert load_experiment(write(path), on_the_command_line).model.theta == 5e6


def test_the_base_follows_the_window_only_upwards(source, hub, write):
    settings = json.loads((hub / "config.json").read_text())
    for theta, trained, expected in ((2e6, 64, 2e6), (500.0, 32_768, 500.0), (500.0, 32_767, 1e6)):
        changed = {**settings, "rope_theta": theta, "max_position_embeddings": trained}
        (hub / "config.json").write_text(json.dumps(changed))
        experiment = load_experiment(write(hub, data={"window": 32_768}, train=long_train(32_768)))
        assert experiment.model.theta == expected, (theta, trained)


# mistakes


def test_a_shape_that_contradicts_the_source_is_a_line_each(source, hub, write):
    for path in (source, hub):
        weights = f"the weights of start.path={path} have"
        with refused(
            f"model.d_model=32: {weights} 16",
            f"model.d_ff=64: {weights} 24",
            f"model.tie_embeddings=True: {weights} False",
            error=ConfigError,
        ):
            load_experiment(write(path, model={"d_model": 32, "n_heads": 4, "d_ff": 64, "tie_embeddings": True}))
    with refused(f"model.n_layers=2: the weights of start.path={source} have 3", error=ConfigError):
        load_experiment(write(source), {"model.n_layers": 2})


def test_a_source_that_is_no_model_is_one_line(tmp_path, source, hub, write):
    with refused(f"start.path={tmp_path / 'x'}: no such folder", error=CheckpointError):
        load_experiment(write(tmp_path / "x"))
    (tmp_path / "empty").mkdir()
    with refused(f"start.path={tmp_path / 'empty'}: holds neither a run nor a config.json", error=CheckpointError):
        load_experiment(write(tmp_path / "empty"))
    settings = json.loads((hub / "config.json").read_text())
    (hub / "config.json").write_text(json.dumps({**settings, "model_type": "gpt2"}))
    with refused("model_type=gpt2: must be one of llama, mistral, qwen2, qwen3", error=ConfigError):
        load_experiment(write(hub))
    with refused("start.pth=1: unknown setting; did you mean start.path?", error=ConfigError):
        load_experiment(write(source, start={"path": str(source), "pth": 1}))


def test_a_tokenizer_of_another_vocabulary_is_one_line(source, write, tmp_path):
    experiment = load_experiment(write(source))
    prepare(experiment.data, progress=False)
    check_vocabulary(experiment)
    other = shutil.copytree(source, tmp_path / "other")
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(text.replace('"<bos>"', '"<start>"'), encoding="utf-8")
    tokenizer = {"method": "file", "path": str(source / "tokenizer.json"), "eos": "<eos>"}
    for path in (other, other / "checkpoints" / f"tokens-{CONSUMED:015d}"):
        rule = f"data.tokenizer: is not the one that start.path={path} was trained with (2 entries differ)"
        with refused(rule, error=ConfigError):
            check_vocabulary(load_experiment(write(path, data={"tokenizer": tokenizer})))
    experiment = load_experiment(write(other, data={"tokenizer": tokenizer}))
    shutil.rmtree(other)
    check_vocabulary(experiment)  # a resumed run, whose source is gone


def test_more_tokens_than_rows_is_one_line(source, write, tmp_path):
    narrow = shutil.copytree(source, tmp_path / "narrow")
    settings = yaml.safe_load((narrow / "config.yaml").read_text())
    settings["model"]["vocab_size"] = 300
    (narrow / "config.yaml").write_text(yaml.safe_dump(settings))
    experiment = load_experiment(write(narrow))
    prepare(experiment.data, progress=False)
    with refused("model.vocab_size=300: the tokenizer has 400 tokens; use 400", error=ConfigError):
        check_vocabulary(experiment)


def test_weights_that_do_not_fit_are_named(source):
    name, where = "blocks.{}.feed_forward.{}.weight is {}, the model's is {}", f"start.path={source}: "
    shapes = [("gate", "24 x 16", "20 x 16"), ("out", "16 x 24", "16 x 20"), ("up", "24 x 16", "20 x 16")]
    with pytest.raises(ConfigError) as caught:
        start_from(Decoder(DecoderConfig(**{**SIZES, "d_ff": 20, "n_layers": 4}, vocab_size=400)), source)
    check_faults(caught.value.faults[:3], [where + name.format(0, *shape) for shape in shapes])
    assert len(caught.value.faults) == 8
    with pytest.raises(ConfigError) as caught:
        start_from(Decoder(DecoderConfig(**{**SIZES, "n_layers": 4}, vocab_size=400)), source)
    check_faults(caught.value.faults[:1], [where + "blocks.3.attention.k.weight is missing, the model's is 8 x 16"])


# what a run begins with


def test_weights_are_those_of_the_source(source, hub):
    theirs = load_file(next(source.glob("checkpoints/*/weights-00000.safetensors")))
    for path in (source, source / "checkpoints" / f"tokens-{CONSUMED:015d}", hub):
        decoder = Decoder(load_experiment(source / "config.yaml").model, seed=5)
        start_from(decoder, path)
        own = decoder.state_dict()
        assert own.keys() == theirs.keys() == read_weights(path).keys()
        assert all(torch.equal(own[name], theirs[name]) for name in own)


def test_tied_weights_stay_tied(prepared, tmp_path):
    run = write_run(tmp_path / "tied", prepared, tie_embeddings=True)
    decoder = Decoder(load_experiment(run / "config.yaml").model, seed=5)
    start_from(decoder, run)
    assert decoder.head.weight is decoder.embedding.weight
    assert torch.equal(decoder.embedding.weight, open_model(run).decoder.embedding.weight)
    pytest.importorskip("safetensors")
    save_pretrained(open_model(run).decoder, tmp_path / "hub")
    fresh = Decoder(decoder.cfg, seed=5)
    start_from(fresh, tmp_path / "hub")
    assert fresh.head.weight is fresh.embedding.weight
    assert torch.equal(fresh.embedding.weight, decoder.embedding.weight)


def test_a_config_reads_back_when_the_source_is_gone(source, extended, hub, write, tmp_path):
    shutil.copytree(source, tmp_path / "there")
    shutil.copytree(extended, tmp_path / "extended")
    for path in (tmp_path / "there", tmp_path / "extended", hub):
        experiment = load_experiment(write(path, data={"window": 32_768}, train=long_train(32_768)))
        shutil.rmtree(path)
        run = tmp_path / f"run_of_{path.name}"
        run.mkdir()
        (run / "config.yaml").write_text(experiment.to_yaml())
        again = load_experiment(run / "config.yaml")
        assert again == experiment
        assert again.to_yaml() == experiment.to_yaml()


def fit(*words):
    done = python("-m", "lab.fit", *words)
    assert done.returncode == 0, done.stderr[-2000:]


def losses(folder):
    return [line["loss"] for line in records(folder)]


def loss_of(decoder, experiment):
    """Mean loss of the first global batch, a run of tokens at a time."""
    data = PackedData(experiment)
    data.setup("fit")
    total, n = 0.0, 0
    packs = iter(data.train_dataloader())
    for _ in range(experiment.train.n_packs):
        batch = next(packs)
        bounds = np.cumsum([0, *batch["lengths"]]).tolist()
        for a, b in zip(bounds, bounds[1:]):
            with torch.no_grad():
                logits = decoder(batch["tokens"][:, a:b])[0].double()
            targets = batch["targets"][0, a:b]
            total += float(F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100))
            n += int((targets >= 0).sum())
    return total / n


def test_a_run_begins_with_the_sources_loss_and_resumes_without_the_source(source, write, tmp_path):
    there = shutil.copytree(source, tmp_path / "there")
    file = write(
        there,
        train=TRAIN,
        optim={"lr": 1e-2, "warmup_steps": 1},
        probe={"every_tokens": None, "tests": 1, "step": 16, "max_length": 224, "loss_tokens": 0},
        track={"every_steps": 1},
    )
    fit(file)
    folder = tmp_path / "runs" / "run"
    experiment = load_experiment(folder / "config.yaml")
    whole = losses(folder)
    expected = loss_of(open_model(source).decoder, experiment)
    assert whole[0] == pytest.approx(expected, abs=LOSS_TOLERANCE)
    assert abs(whole[0] - loss_of(Decoder(experiment.model, seed=0), experiment)) > 0.1, "random weights differ"
    assert abs(whole[-1] - whole[0]) > 0.01, "the run has moved on"
    shutil.rmtree(there)
    first, last = sorted((folder / "checkpoints").glob("tokens-*"))
    trained = read_weights(last)
    shutil.rmtree(last)
    fit(folder / "config.yaml", "--resume")
    assert losses(folder) == whole
    again = read_weights(last)
    assert first.exists()
    assert all(torch.equal(again[name], tensor) for name, tensor in trained.items())
