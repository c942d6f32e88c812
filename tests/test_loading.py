"""One function opens a model wherever it comes from."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eval.engine.subject import as_subject
from lab.config import load_experiment
from lab.errors import CheckpointError, ConfigError, DataError
from lab.loading import open_model, read_weights
from lab.positions import frequencies
from lab.settings import parse_overrides
from lab.source import hub_folder
from lab.train.checkpoints import folder_name
from tests.forked import ROOT
from tests.opened import CONSUMED, SIZES, write_run
from tests.refusals import refused


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("runs") / "tiny",
        prepared,
        position={"distance": {"method": "string", "shift": 20, "window": 4}},
    )


@pytest.fixture
def llama(bpe, tmp_path):
    folders = pytest.importorskip("tests.model.folders", exc_type=ImportError)
    folder = tmp_path / "llama"
    folders.theirs(vocab_size=bpe.get_vocab_size()).save_pretrained(folder)
    bpe.save(str(folder / "tokenizer.json"))
    return folder


def test_a_run_folder(run):
    model = open_model(run)
    assert (model.name, model.train_len, model.consumed_tokens) == ("tiny", 64, CONSUMED)
    assert (model.folder, model.experiment) == (run, load_experiment(run / "config.yaml"))
    assert model.method == "rope+string(shift=20,window=4)"
    assert model.tokenizer.get_vocab_size() == 400
    state, saved = model.decoder.state_dict(), read_weights(run)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in state.items())
    assert float(state["blocks.0.attention.q.weight"].std()) > 0.3, "the drawn weights, not those of a new decoder"
    assert not model.decoder.training


LOADED = """
import sys
from eval.distance import __main__ as command

def stop(subject, options):
    print(subject.checkpoint, *sys.modules)
    raise KeyboardInterrupt

command.make_probe = stop
sys.exit(command.main(sys.argv[1:]))
"""
SLOW_TO_IMPORT = "lightning pandas matplotlib altair transformers datasets wandb lm_eval sympy torch._dynamo"
SLOW_TO_IMPORT += " torch.distributed.checkpoint torch.distributed.tensor torch.distributed.fsdp scipy.stats"


def test_an_evaluation_has_loaded_its_model_without_what_is_slow_to_import(run, tmp_path):
    words = [sys.executable, "-c", LOADED, shutil.copytree(run, tmp_path / "tiny")]
    done = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 75, done.stderr
    checkpoint, *loaded = done.stdout.split()
    assert checkpoint == folder_name(CONSUMED)
    assert {"torch", "lab.train.state"} < {*loaded}
    assert {*loaded} & {*SLOW_TO_IMPORT.split()} == set()


def test_a_checkpoint_named_from_anywhere(run, monkeypatch):
    checkpoint = next((run / "checkpoints").glob("tokens-*"))
    assert open_model(str(checkpoint)).folder == run
    monkeypatch.chdir(run / "checkpoints")
    opened = open_model(checkpoint.name)
    assert (opened.name, opened.folder) == ("tiny", run)
    monkeypatch.chdir(run)
    assert open_model(".").name == "tiny"


def test_overrides_of_a_run(run):
    other = {"position.distance.method": "rerope", "position.distance.window": 9, "run.seed": 3}
    model = open_model(run, other)
    assert model.method == "rope+rerope(window=9)"
    assert model.experiment.run.seed == 3
    assert open_model(run).method == "rope+string(shift=20,window=4)"


def test_a_run_whose_shards_are_gone_has_no_tokenizer(run):
    assert open_model(run, {"data.folder": "/nowhere"}).tokenizer is None


def test_a_hugging_face_folder(llama):
    model = open_model(llama)
    assert (model.name, model.train_len, model.consumed_tokens) == ("llama", 64, None)
    assert (model.folder, model.experiment) == (None, None)
    assert model.method == "rope+plain"
    assert model.decoder.frequencies.theta == 500.0
    assert model.tokenizer.get_vocab_size() == 400
    from tests.model.folders import assert_same_logits, opened

    assert_same_logits(model.decoder, opened(llama))
    (llama / "tokenizer.json").unlink()
    assert open_model(llama).tokenizer is None


def test_overrides_of_a_hugging_face_folder(llama):
    distance = {"position.distance.method": "string", "position.distance.shift": 12, "position.distance.window": 3}
    model = open_model(llama, distance)
    assert model.method == "rope+string(shift=12,window=3)"
    assert model.decoder.frequencies.theta == 500.0  # the folder's own
    yarn = {"position.frequency.method": "yarn", "position.frequency.factor": 4.0, "position.frequency.train_len": 64}
    model = open_model(llama, yarn | distance)
    assert model.method == "yarn(factor=4,train_len=64)+string(shift=12,window=3)"
    expected = frequencies("yarn", head_dim=8, theta=500.0, factor=4.0, train_len=64)
    assert torch.equal(model.decoder.frequencies.inv_freq, expected.inv_freq)


def test_string_named_alone_shifts_by_a_third_of_the_training_length(llama):
    """A third of 64, rounded up, and W = 128 where S has room for it, else half of S."""
    named = {"position.distance.method": "string"}
    assert open_model(llama, named).method == "rope+string(shift=22,window=11)"
    assert open_model(llama, named | {"position.distance.window": 4}).method == "rope+string(shift=22,window=4)"


def test_frequencies_that_config_json_says_and_the_lab_does_not_know_can_be_replaced(llama):
    path = llama / "config.json"
    settings = json.loads(path.read_text())
    settings["rope_parameters"] = {"rope_type": "proportional", "rope_theta": 300.0}
    path.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="rope_type=proportional"):
        open_model(llama)
    assert open_model(llama, {"position.frequency.method": "rope"}).decoder.frequencies.theta == 300.0


def test_what_is_no_model_is_one_line(tmp_path):
    file = tmp_path / "model.safetensors"
    neither = "holds neither a run nor a config.json"
    for path, rule in ((tmp_path / "x", "no such folder"), (tmp_path, neither), (file, "no such folder")):
        with refused(f"{path}: {rule}", error=CheckpointError):
            open_model(path)
        file.touch()


def test_a_run_without_a_whole_checkpoint_is_one_line(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    state = next(copy.glob("checkpoints/tokens-*/state.ckpt"))
    state.write_bytes(b"cut short")
    with refused(f"{state.parent}: state.ckpt has 9 bytes, its manifest records ", error=CheckpointError):
        open_model(state.parent)
    with refused(f"{copy}: holds no whole checkpoint (", error=CheckpointError):
        open_model(copy)
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").mkdir()
    with refused(f"{copy}: holds no whole checkpoint; ", error=CheckpointError):
        open_model(copy)


def test_a_broken_hugging_face_folder_is_one_line(llama):
    (llama / "tokenizer.json").write_text("{")
    with refused(f"data.tokenizer.path={llama / 'tokenizer.json'}: not a tokenizer.json (", error=DataError):
        open_model(llama)
    (llama / "model.safetensors").unlink()
    with refused("{}model.safetensors.index.json", error=CheckpointError):
        open_model(llama)


WRONG = {
    "method=strng": "position.distance.method=strng: unknown; did you mean string?",
    "method=rerope": "position.distance.window: must be set",
    "position.frequency.method=pi position.frequency.factor=0.5": "position.frequency.factor=0.5: must ",
    "probe.tests=3": "probe.tests=3: not a setting of a Hugging Face folder; set position.frequency or ",
    "position=3": "position=3: must be a section",
}


@pytest.mark.parametrize(("words", "start"), WRONG.items(), ids=WRONG)
def test_wrong_overrides_of_a_hugging_face_folder_are_one_line(llama, words, start):
    words = [f"--position.distance.{word}" if word.startswith("method") else f"--{word}" for word in words.split()]
    with refused(start, error=ConfigError):
        open_model(llama, parse_overrides(words))


def test_wrong_overrides_of_a_run_are_one_line(run):
    with refused("model.d_modl=3: unknown setting", error=ConfigError):
        open_model(run, {"model.d_modl": 3})
    assert SIZES["n_layers"] == open_model(run).experiment.model.n_layers


@pytest.fixture
def hub_cache(llama, tmp_path, monkeypatch):
    """The hub's cache, with one revision of one model, and no network."""
    hub = pytest.importorskip("huggingface_hub")
    home = tmp_path / "hub" / "models--owner--small"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "step-10").write_text("a" * 40)
    shutil.copytree(llama, home / "snapshots" / ("a" * 40))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    hub_folder.cache_clear()
    yield
    hub_folder.cache_clear()


@pytest.mark.usefixtures("hub_cache")
def test_a_revision_of_the_hub_opens_from_the_cache(llama):
    path = Path("hf:owner/small@step-10")
    model, same = open_model(path), open_model(llama)
    assert (model.name, model.train_len, model.method) == ("small@step-10", 64, "rope+plain")
    assert model.tokenizer.get_vocab() == same.tokenizer.get_vocab()
    weights = same.decoder.state_dict()
    for found in (model.decoder.state_dict(), read_weights(path)):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in found.items())
    assert as_subject(model, path, torch.device("cpu")).weights


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("name", ["hf:owner/small@step-20", "hf:owner/none", "hf:a/b/c", "hf:"])
def test_a_model_that_is_not_in_the_cache_is_one_line_offline(name):
    with refused(f"{name}: not in the cache, and not to be had ({{}}", error=CheckpointError):
        open_model(name)
