"""Tensors of checkpoints: plain safetensors, any number of ranks to any other, hashed as written, no code run."""

import hashlib
import json
import pickle
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.core.errors import CheckpointError
from lab.loading import load_weights, read_tensors, read_weights
from lab.runs.checkpoints import Checkpoint, newest, open_checkpoint
from lab.runs.recovery import read_state
from lab.runs.shards import ShardWriter, packed, publish, read_shards, write_shards
from tests.opened import small_files
from tests.refusals import refused

TENSORS = {"a.weight": torch.arange(15.0).view(5, 3), "optimizer.a.weight.exp_avg": torch.arange(5.0) - 2}


def save(root, tensors, small=None, *, group=None, background=False):
    writer = ShardWriter(root, small_files(100) | (small or {}), partial(publish, root, 100, 2, "run"))
    return write_shards(dict(tensors), writer, group, background=background)


def test_files_are_plain_safetensors_and_hashed_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.core.files.sha256", lambda *_: pytest.fail("a file is read back"))
    save(tmp_path, TENSORS)
    folder = tmp_path / "tokens-000000000000100"
    assert torch.equal(load_file(folder / "weights-00000.safetensors")["a.weight"], TENSORS["a.weight"])
    assert list(load_file(folder / "optimizer-00000.safetensors")) == ["optimizer.a.weight.exp_avg"]
    manifest = json.loads((folder / "manifest.json").read_text())["files"]
    assert manifest.keys() == {"state.ckpt", "counts.npz", "weights-00000.safetensors", "optimizer-00000.safetensors"}
    for name, entry in manifest.items():
        data = (folder / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_dtype_and_layout_comes_back(tmp_path, dtype):
    wide = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    save(tmp_path, {"w": wide.T, "part": wide[1:3, 1:], "one": wide[0, :1]})
    found = {"w": torch.zeros(4, 6, dtype=dtype), "part": torch.zeros(2, 3, dtype=dtype)}
    read_shards(found, newest(tmp_path).folder)
    assert torch.equal(found["w"], wide.T)
    assert torch.equal(found["part"], wide[1:3, 1:])
    whole = read_weights(newest(tmp_path).folder)
    assert whole.keys() == {"w", "part", "one"}
    assert torch.equal(whole["w"], wide.T)


def test_only_the_files_of_its_manifest_are_read(tmp_path):
    save(tmp_path, {"w": torch.ones(4, 3)})
    saved = newest(tmp_path)
    for name in ("weights-00000-old", "weights-00007"):
        save_file({"w": torch.zeros(4, 3), "other": torch.zeros(1)}, saved.folder / f"{name}.safetensors")
    found = {"w": torch.zeros(4, 3)}
    read_shards(found, saved.folder)
    assert torch.equal(found["w"], torch.ones(4, 3))
    assert read_tensors(saved).keys() == {"w"}
    assert torch.equal(read_tensors(saved)["w"], found["w"])


def test_the_digest_names_the_weights_alone(tmp_path):
    def digest(name, **changed):
        save(tmp_path / name, TENSORS | changed, {"state.ckpt": packed({"name": name})})
        return newest(tmp_path / name).digest

    other_moments = {"optimizer.a.weight.exp_avg": torch.zeros(5)}
    assert digest("first") == digest("second") == digest("third", **other_moments)
    assert digest("first") != digest("fourth", **{"a.weight": torch.zeros(5, 3)})


def test_tensors_of_other_names_or_shapes_and_broken_files_are_one_line(tmp_path):
    save(tmp_path, {"a": torch.zeros(5, 3)})
    saved = newest(tmp_path)
    for name, shape in (("b", (5, 3)), ("a", (3, 5))):
        with refused(f"{saved.folder}: cannot be read (", error=CheckpointError):
            read_shards({name: torch.zeros(shape)}, saved.folder)
        with refused(f"{saved.folder}: cannot be read (", error=CheckpointError):
            load_weights(torch.nn.ParameterDict({name: torch.zeros(shape)}), saved)
    (saved.folder / "weights-00000.safetensors").write_bytes(b"\xff" * 100)
    for read in (partial(read_shards, {"a": torch.zeros(5, 3)}, saved.folder), partial(read_tensors, saved)):
        with refused(f"{saved.folder}: cannot be read (", error=CheckpointError):
            read()


def test_what_a_checkpoint_holds_is_not_run(tmp_path):
    trace = tmp_path / "trace"
    attack = f"cbuiltins\nopen\n(V{trace}\nVw\ntR.".encode()  # a pickle may call anything
    pickle.loads(attack).close()
    assert trace.exists(), "the attack works on an unguarded reader"
    trace.unlink()
    root = tmp_path / "checkpoints"
    save(root, {"embedding.weight": torch.zeros(2, 2)}, {"state.ckpt": attack, ".metadata": attack})
    saved = open_checkpoint(tmp_path)
    load_weights(torch.nn.Module(), saved)
    for read in (read_state, lambda saved: read_weights(saved.folder)):
        with refused(f"{saved.state}: cannot be read (", error=CheckpointError):
            read(saved)
    assert not trace.exists()


@pytest.mark.parametrize("junk", [b"", packed({})[:-60], packed([1])], ids=["empty", "cut", "list"])
def test_a_state_that_is_none_is_one_line(tmp_path, junk):
    (tmp_path / "state.ckpt").write_bytes(junk)
    with refused(f"{tmp_path / 'state.ckpt'}: ", error=CheckpointError):
        read_state(Checkpoint(tmp_path))
