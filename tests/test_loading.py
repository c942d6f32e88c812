"""One function opens a model wherever it comes from."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from lab.config import load_experiment
from lab.core.errors import CheckpointError, ConfigError, DataError
from lab.loading import open_model, read_weights
from lab.positions import frequencies
from lab.runs.source import hub_folder
from tests.opened import CONSUMED, write_run
from tests.refusals import refused
from tests.test_first_mistakes import ran


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    string = {"distance": {"method": "string", "shift": 20, "window": 4}}
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", prepared, position=string)


@pytest.fixture
def llama(bpe, tmp_path):
    folders = pytest.importorskip("tests.model.folders", exc_type=ImportError)
    folder = tmp_path / "llama"
    folders.theirs(vocab_size=bpe.get_vocab_size()).save_pretrained(folder)
    bpe.save(str(folder / "tokenizer.json"))
    return folder


def test_a_run_folder_and_a_checkpoint_named_from_anywhere(run, monkeypatch):
    model = open_model(run)
    assert (model.name, model.train_len, model.consumed_tokens) == ("tiny", 64, CONSUMED)
    assert (model.folder, model.experiment) == (run, load_experiment(run / "config.yaml"))
    assert model.method == "rope+string(shift=20,window=4)"
    assert model.tokenizer.get_vocab_size() == 400
    state, saved = model.decoder.state_dict(), read_weights(run)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in state.items())
    assert float(state["blocks.0.attention.q.weight"].std()) > 0.3, "the drawn weights, not those of a new decoder"
    assert model.model is model.decoder
    assert not model.decoder.training
    checkpoint = next((run / "checkpoints").glob("tokens-*"))
    assert open_model(str(checkpoint)).folder == run
    monkeypatch.chdir(run / "checkpoints")
    assert open_model(checkpoint.name).folder == run
    monkeypatch.chdir(run)
    assert open_model(".").name == "tiny"


LOADED = "import sys; from lab.loading import open_model; open_model(sys.argv[1]); print(*sys.modules)"
SLOW_TO_IMPORT = "lightning pandas altair transformers datasets wandb lm_eval sympy torch._dynamo"
SLOW_TO_IMPORT += " torch.distributed.checkpoint torch.distributed.tensor torch.distributed.fsdp scipy.stats"


def test_a_model_is_opened_without_what_is_slow_to_import(run):
    loaded = {*ran("-c", LOADED, run).stdout.split()}
    assert {"torch", "lab.runs.checkpoints"} < loaded
    assert loaded & {*SLOW_TO_IMPORT.split()} == set()


def test_a_hugging_face_folder_as_it_is_and_under_overrides(llama):
    model = open_model(llama)
    assert (model.name, model.train_len, model.method) == ("llama", 64, "rope+plain")
    assert (model.folder, model.experiment, model.consumed_tokens) == (None, None, None)
    assert model.decoder.frequencies.theta == 500.0
    assert model.tokenizer.get_vocab_size() == 400
    (llama / "tokenizer.json").unlink()
    assert open_model(llama).tokenizer is None
    distance = {"position.distance.method": "string", "position.distance.shift": 12, "position.distance.window": 3}
    yarn = {"position.frequency.method": "yarn", "position.frequency.factor": 4.0, "position.frequency.train_len": 64}
    model = open_model(llama, yarn | distance)
    assert model.method == "yarn(factor=4,train_len=64)+string(shift=12,window=3)"
    expected = frequencies("yarn", head_dim=8, theta=500.0, factor=4.0, train_len=64)
    assert torch.equal(model.decoder.frequencies.inv_freq, expected.inv_freq)
    # a third of the training length 64, rounded up, and W = 128 where S has room for it, else half of S
    assert open_model(llama, {"position.distance.method": "string"}).method == "rope+string(shift=22,window=11)"
    path = llama / "config.json"
    unknown = {"rope_type": "proportional", "rope_theta": 300.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": unknown}))
    model = open_model(llama)
    assert model.method == "own+plain", "frequencies that transformers alone knows"
    assert type(model.model).__name__ == "LlamaForCausalLM"
    assert open_model(llama, {"position.frequency.method": "rope"}).decoder.frequencies.theta == 300.0


def test_what_is_no_model_or_a_broken_one_is_one_line(llama, run, tmp_path):
    neither = "holds neither a run nor a config.json"
    for path, rule in ((tmp_path / "x", "no such folder"), (tmp_path, neither)):
        with refused(f"{path}: {rule}", error=CheckpointError):
            open_model(path)
    with refused("probe.tests=3: unknown setting; ", error=ConfigError):
        open_model(llama, {"probe.tests": 3})
    (llama / "tokenizer.json").write_text("{")
    with refused(f"data.tokenizer.path={llama / 'tokenizer.json'}: not a ", error=DataError):
        open_model(llama)
    (llama / "model.safetensors").unlink()
    with refused("{}model.safetensors.index.json", error=CheckpointError):
        open_model(llama)
    copy = shutil.copytree(run, tmp_path / "copy")
    (cut := next(copy.glob("checkpoints/tokens-*/state.ckpt"))).write_bytes(b"cut short")
    with refused(f"{cut}: has 9 bytes", error=CheckpointError):
        open_model(copy)


def test_a_revision_of_the_hub_opens_from_the_cache(llama, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    home = tmp_path / "hub" / "models--owner--small"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "step-10").write_text("a" * 40)
    shutil.copytree(llama, home / "snapshots" / ("a" * 40))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    hub_folder.cache_clear()
    path = Path("hf:owner/small@step-10")
    model, weights = open_model(path), open_model(llama).decoder.state_dict()
    assert (model.name, model.train_len, model.method) == ("small@step-10", 64, "rope+plain")
    for found in (model.decoder.state_dict(), read_weights(path)):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in found.items())
    for name in ("hf:owner/small@step-20", "hf:"):
        with refused(f"{name}: not in the cache{{}}", error=CheckpointError):
            open_model(name)
    with refused(f"hf:{llama}: {llama} is a folder here{{}}", error=CheckpointError):
        open_model(f"hf:{llama}")
    hub_folder.cache_clear()


OTHER_FORMATS = {  # files of a model, and what loads them
    "adapter": (("m/adapter_config.json",), "m", 'm = M.from_pretrained("m").merge_and_unload()', "peft"),
    "adapter_and_config": (("m/adapter_config.json", "m/config.json"), "m", ".merge_and_unload()", "peft"),
    "gguf": (("m/it's.gguf",), "m", 'M.from_pretrained("m", gguf_file="it\'s.gguf")', "gguf"),
    "gguf_file": (("m/a.gguf", "m/b.gguf"), "m/b.gguf", 'gguf_file="b.gguf"', "gguf"),
    "pickle": (("m/config.json", "m/pytorch_model.bin"), "m", "AutoModelForCausalLM as M", "transformers"),
}


@pytest.mark.parametrize(("files", "path", "loads", "package"), OTHER_FORMATS.values(), ids=OTHER_FORMATS)
def test_models_of_other_formats_are_refused_with_the_command_that_converts_them(
    files, path, loads, package, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    for file in files:
        (tmp_path / file).write_text(json.dumps({"model_type": "llama", "vocab_size": 9, **sizes}))
    with pytest.raises(CheckpointError, match=f"pip install {package}, then python -c") as caught:
        open_model(path)
    _, option, code = shlex.split(str(caught.value).split(", then ")[1])
    compile(code, "code", "exec")
    assert (option, loads in code, 'save_pretrained("converted")' in code) == ("-c", True, True), code
