"""Tensors of checkpoints: plain safetensors, any number of ranks to any other, hashed as written, no code run."""

import hashlib
import json
import pickle
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.tensor import Shard, distribute_tensor

from lab.errors import CheckpointError
from lab.model.decoder import Decoder, DecoderConfig
from lab.runs.checkpoints import (
    Checkpoint,
    load_weights,
    newest,
    open_checkpoint,
    publish,
    read_state,
    read_weights_of,
)
from lab.runs.shards import ShardWriter, packed, read_shards, restore_tensors, tensors_to_save, write_shards
from tests.opened import small_files
from tests.ranks import meet
from tests.refusals import refused

CFG = DecoderConfig(d_model=8, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=8, vocab_size=13, tie_embeddings=True)
TENSORS = {"a.weight": torch.arange(15.0).view(5, 3), "optimizer.a.weight.exp_avg": torch.arange(5.0) - 2}


def save(root, tensors, small=None, *, group=None, background=False):
    writer = ShardWriter(root, small_files(100) | (small or {}), partial(publish, root, 100, 2, "run"))
    return write_shards(dict(tensors), writer, group, background=background)


def test_files_are_plain_safetensors_and_hashed_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.files.sha256", lambda *_: pytest.fail("a file is read back"))
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
    whole = read_weights_of(newest(tmp_path))
    assert whole.keys() == {"w", "part", "one"}
    assert torch.equal(whole["w"], wide.T)


def test_the_digest_names_the_weights_alone(tmp_path):
    def digest(name, **changed):
        save(tmp_path / name, TENSORS | changed, {"state.ckpt": packed({"name": name})})
        return newest(tmp_path / name).digest

    other_moments = {"optimizer.a.weight.exp_avg": torch.zeros(5)}
    assert digest("first") == digest("second") == digest("third", **other_moments)
    assert digest("first") != digest("fourth", **{"a.weight": torch.zeros(5, 3)})


def trained(seed, steps=2):
    """Train a tied model a little; the optimizer counts matrices before vectors, as no model does."""
    model = Decoder(CFG, seed=seed)
    groups = [[p for p in model.parameters() if (p.ndim >= 2) == matrix] for matrix in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group, "weight_decay": 0.0} for group in groups], lr=1e-2, fused=True)
    tokens = torch.arange(12)[None]
    for _ in range(steps):
        model(tokens, targets=tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_a_trained_model_comes_back_with_its_optimizer(tmp_path):
    model, optimizer = trained(1)
    tensors, small = tensors_to_save(model, optimizer)
    assert "head.weight" not in tensors, "a tied weight is written once"
    save(tmp_path, tensors, small_files(100, **small))
    other, fresh = trained(2, steps=0)
    saved = newest(tmp_path)
    restore_tensors(other, fresh, saved, read_state(saved), None)
    assert other.head.weight is other.embedding.weight
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        ours, expected = fresh.state[mine], optimizer.state[theirs]
        assert ours.keys() == expected.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(ours[key], expected[key]) for key in ours)
    weights = read_weights_of(saved)
    assert weights.keys() == model.state_dict().keys()
    load_weights(blank := Decoder(CFG, seed=9), saved)
    for name, tensor in model.state_dict().items():
        assert torch.equal(weights[name], tensor)
        assert torch.equal(blank.state_dict()[name], tensor)


def write_sharded(root, world):
    """Write row shards of uneven tensors and a replicated one; then read them all back whole."""
    meet()
    group = torch.distributed.group.WORLD
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
    whole = {"five": torch.arange(20.0).view(5, 4), "one": torch.tensor([7.0])}
    tensors = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}
    save(root, tensors | {"everywhere": torch.arange(3.0)}, group=group)
    found = {name: torch.zeros_like(tensor) for name, tensor in whole.items()} | {"everywhere": torch.zeros(3)}
    read_shards(found, newest(root).folder, group)
    return found


def test_shards_of_two_ranks_are_read_by_one(ranks, tmp_path):
    for found in ranks(2).run(write_sharded, tmp_path, 2):
        assert torch.equal(found["five"], torch.arange(20.0).view(5, 4))
        assert (found["one"].tolist(), found["everywhere"].tolist()) == ([7.0], [0.0, 1.0, 2.0])
    saved = newest(tmp_path)
    held = []
    for path in sorted(saved.folder.glob("weights-*")):
        with safe_open(path, framework="pt") as file:
            held += [(path.name[8:13], name, tuple(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118
    assert sorted(held)[:2] == [("00000", "five", (3, 4)), ("00000", "one", (1,))]
    assert ("00001", "five", (2, 4)) in held
    assert [name for _, name, _ in held].count("everywhere") == 1, "what all hold is written once"
    found = {"five": torch.zeros(5, 4), "one": torch.zeros(1)}
    read_shards(found, saved.folder)
    for read in (found, read_weights_of(saved)):
        assert (read["five"].flatten().tolist(), read["one"].item()) == ([float(n) for n in range(20)], 7.0)
    assert read["everywhere"].tolist() == [0.0, 1.0, 2.0]


def holding(**shapes):
    """Build a model that has weights of these shapes."""
    model = torch.nn.Module()
    for name, shape in shapes.items():
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    return model


def test_tensors_of_other_names_or_shapes_and_broken_files_are_one_line(tmp_path):
    save(tmp_path, {"a": torch.zeros(5, 3)})
    saved = newest(tmp_path)
    for name, shape in (("b", (5, 3)), ("a", (3, 5))):
        with refused(f"{saved.folder}: cannot be read (", error=CheckpointError):
            read_shards({name: torch.zeros(shape)}, saved.folder)
        with refused(f"{saved.folder}: cannot be read (", error=CheckpointError):
            load_weights(holding(**{name: shape}), saved)
    (saved.folder / "weights-00000.safetensors").write_bytes(b"\xff" * 100)
    for read in (lambda: read_shards({"a": torch.zeros(5, 3)}, saved.folder), lambda: read_weights_of(saved)):
        with refused(f"{saved.folder}: cannot be read (", error=CheckpointError):
            read()


class Attack:
    """What a pickle may do: call anything."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_what_a_checkpoint_holds_is_not_run(tmp_path):
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Attack(trace))).close()
    assert trace.exists(), "the attack works on an unguarded reader"
    trace.unlink()
    root = tmp_path / "checkpoints"
    bytes_of = {"state.ckpt": pickle.dumps(Attack(trace)), ".metadata": pickle.dumps(Attack(trace))}
    save(root, {"embedding.weight": torch.zeros(2, 2)}, bytes_of)
    saved = open_checkpoint(tmp_path)
    load_weights(torch.nn.Module(), saved)
    for read in (read_state, read_weights_of):
        with refused(f"{saved.state}: cannot be read (", error=CheckpointError):
            read(saved)
    assert not trace.exists()


@pytest.mark.parametrize(
    "junk", [b"", b"junk" * 50, packed({})[:-60], packed([1])], ids=["empty", "junk", "cut", "list"]
)
def test_a_state_that_is_none_is_one_line(tmp_path, junk):
    (tmp_path / "state.ckpt").write_bytes(junk)
    with refused(f"{tmp_path / 'state.ckpt'}: ", error=CheckpointError):
        read_state(Checkpoint(tmp_path))
