"""Checkpoints as folders: published whole or not at all, kept by number, refused where a file is not theirs."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from lab.core.errors import CheckpointError
from lab.core.files import build_manifest
from lab.runs.checkpoints import candidates, newest, open_checkpoint
from lab.runs.shards import publish, temporary_folder
from tests.refusals import refused

WEIGHTS = "weights-00000.safetensors"


def save(root, tokens, keep=2, run="this"):
    folder = temporary_folder(root)
    (folder / "state.ckpt").write_bytes(b"state" + f"{tokens:015d}".encode())
    (folder / "counts.npz").write_bytes(b"counts" + f"{tokens:015d}".encode())
    save_file({"w": torch.full((4,), float(tokens))}, folder / WEIGHTS)
    return publish(root, tokens, keep, run, build_manifest(folder))


def at(root, tokens):
    return root / f"tokens-{tokens:015d}"


def kept(root):
    return [int(path.name[7:]) for path in candidates(root)]


OUTSIDE = {"files": {"../../secret": {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb924"}}}
BREAKS = {
    "no_manifest": lambda folder: (folder / "manifest.json").unlink(),
    "cut_manifest": lambda folder: (folder / "manifest.json").write_text('{"files"'),
    "manifest_of_another_kind": lambda folder: (folder / "manifest.json").write_text("{}"),
    "manifest_names_a_file_outside": lambda folder: (folder / "manifest.json").write_text(json.dumps(OUTSIDE)),
    "no_state": lambda folder: (folder / "state.ckpt").unlink(),
    "cut_weights": lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1]),
    "exchanged_state": lambda folder: shutil.copy(at(folder.parent, 100) / "state.ckpt", folder),
    "exchanged_weights": lambda folder: shutil.copy(at(folder.parent, 100) / WEIGHTS, folder),
}


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_are_kept_and_other_names_left_alone(tmp_path, keep):
    for name in ("tokens-12", "tokens-000000000000900x"):
        (tmp_path / name).mkdir()
    every = [9_000, 10_000, 2_000_000, 30_000_000, 1_000_000_000_000]  # names sort as tokens do
    for tokens in every:
        save(tmp_path, tokens, keep)
    assert kept(tmp_path) == every[: -keep - 1 : -1]
    assert len(list(tmp_path.iterdir())) == keep + 2


def test_a_kill_while_an_old_one_is_deleted_leaves_no_half_of_it(tmp_path, monkeypatch):
    save(tmp_path, 100, 1)

    def killed(path, **_):
        if path.exists():
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 200, 1)
    assert kept(tmp_path) == [200]


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_one_is_refused_and_the_newest_whole_one_named(tmp_path, name):
    root = tmp_path / "checkpoints"
    for tokens in (50, 100, 200):
        save(root, tokens, keep=3)
    assert newest(root) == open_checkpoint(tmp_path) == open_checkpoint(at(root, 200))
    BREAKS[name](at(root, 200))
    for find in (lambda: newest(root), lambda: open_checkpoint(tmp_path), lambda: open_checkpoint(at(root, 200))):
        with refused(f"{at(root, 200)}", error=CheckpointError):
            find()
    both = f"{at(root, 200)}, {at(root, 100)}"
    go_on = "to go on from tokens-000000000000"
    fixes = ((None, f"delete {at(root, 200)} {go_on}100"), (WEIGHTS, f"delete {both} {go_on}050"), (None, "--restart"))
    for broken, whole in fixes:
        if broken is not None:
            (at(root, 100) / broken).write_bytes((at(root, 100) / broken).read_bytes()[:-1] + b"!")
        if whole == "--restart":
            (at(root, 50) / "counts.npz").unlink()
        with pytest.raises(CheckpointError, match=f"or (start again with )?{whole}"):
            newest(root)


def test_one_of_another_run_or_of_none_or_without_counts_is_refused(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "manifest.json").write_text(json.dumps({"run": "this", "files": {}}))
    root = tmp_path / "checkpoints"
    save(root, 100)
    assert newest(root).consumed_tokens == 100
    folder = save(root, 200).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    uncounted = {name: entry for name, entry in manifest["files"].items() if name != "counts.npz"}
    for values, rule in (
        ({"run": "that"}, "a checkpoint of run that, this one is this"),
        ({"run": None}, "not that of this checkpoint"),
        ({"consumed_tokens": 7}, "not that of this checkpoint"),
        ({"files": uncounted}, "not that of this checkpoint"),
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest | values))
        with refused(f"{folder}/manifest.json: is {rule}", error=CheckpointError):
            newest(root)


def test_a_run_folder_without_one_is_one_line(tmp_path):
    with refused(f"{tmp_path}: holds no checkpoint; ", error=CheckpointError):
        open_checkpoint(tmp_path)
