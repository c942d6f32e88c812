import hashlib
import json
import shutil

import pytest

from lab.errors import CheckpointError
from lab.files import publish_folder
from lab.train import checkpoints
from lab.train.checkpoints import newest, open_checkpoint, publish, temporary_folder
from tests.refusals import refused


def save(root, tokens, keep=2):
    folder = temporary_folder(root)
    (folder / "state.ckpt").write_bytes(b"state" * 50 + str(tokens).encode())
    (folder / "counts.npz").write_bytes(b"counts")
    return publish(root, tokens, keep)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BREAKS = {
    "no_manifest": lambda folder: (folder / "manifest.json").unlink(),
    "empty_manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "cut_manifest": lambda folder: (folder / "manifest.json").write_text('{"files"'),
    "manifest_of_another_kind": lambda folder: (folder / "manifest.json").write_text("{}"),
    "manifest_is_a_list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "no_state": lambda folder: (folder / "state.ckpt").unlink(),
    "cut_state": lambda folder: (folder / "state.ckpt").write_bytes((folder / "state.ckpt").read_bytes()[:-1]),
    "flipped_state": lambda folder: flip(folder / "state.ckpt"),
    "flipped_counts": lambda folder: flip(folder / "counts.npz"),
}


def test_a_checkpoint_holds_its_files_and_their_hashes(tmp_path):
    saved = save(tmp_path, 4096)
    assert saved.folder == tmp_path / "tokens-000000000004096"
    assert saved.consumed_tokens == 4096
    manifest = json.loads((saved.folder / "manifest.json").read_text())
    assert manifest["consumed_tokens"] == 4096
    assert set(manifest["files"]) == {"state.ckpt", "counts.npz"}
    for name, entry in manifest["files"].items():
        data = (saved.folder / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert [path.name for path in tmp_path.iterdir()] == ["tokens-000000000004096"], "nothing else is left"


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    for tokens in (9_000, 10_000, 2_000_000, 30_000_000, 1_000_000_000_000):  # names sort as tokens do
        save(tmp_path, tokens, keep)
    left = sorted(int(path.name[7:]) for path in tmp_path.iterdir())
    assert left == [9_000, 10_000, 2_000_000, 30_000_000, 1_000_000_000_000][-keep:]
    assert newest(tmp_path)[0].consumed_tokens == 1_000_000_000_000


def test_the_newest_whole_one_is_found_without_complaint(tmp_path):
    save(tmp_path, 100)
    save(tmp_path, 200)
    found, passed = newest(tmp_path)
    assert (found.consumed_tokens, found.state.name, passed) == (200, "state.ckpt", [])


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_newest_is_passed_over_and_named(tmp_path, name):
    save(tmp_path, 100)
    BREAKS[name](save(tmp_path, 200).folder)
    found, passed = newest(tmp_path)
    assert found.consumed_tokens == 100
    (line,) = passed
    assert line.startswith(f"{tmp_path / 'tokens-000000000000200'}: ")
    assert line.endswith("; skipped")


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_one_that_was_asked_for_is_refused(tmp_path, name):
    folder = save(tmp_path, 100).folder
    BREAKS[name](folder)
    with refused(f"{folder}: ", error=CheckpointError):
        open_checkpoint(folder)


def test_a_run_folder_opens_its_newest_and_a_checkpoint_itself(tmp_path):
    save(tmp_path / "checkpoints", 100)
    second = save(tmp_path / "checkpoints", 200)
    assert open_checkpoint(tmp_path) == second
    assert open_checkpoint(tmp_path / "checkpoints" / "tokens-000000000000100").consumed_tokens == 100


@pytest.mark.parametrize("broken", [False, True], ids=["none", "only_broken_ones"])
def test_a_run_folder_without_a_whole_one_is_one_line(tmp_path, broken):
    if broken:
        flip(save(tmp_path / "checkpoints", 100).state)
    reason = " ({}state.ckpt is not what was written; skipped)" if broken else "; "
    with refused(f"{tmp_path}: holds no whole checkpoint{reason}", error=CheckpointError):
        open_checkpoint(tmp_path)


def test_what_a_kill_left_half_written_is_no_checkpoint(tmp_path):
    save(tmp_path, 100)
    half = temporary_folder(tmp_path)
    (half / "state.ckpt").write_bytes(b"ha")
    assert newest(tmp_path)[0].consumed_tokens == 100
    saved = save(tmp_path, 200)
    assert newest(tmp_path) == (saved, [])
    assert not half.exists()


@pytest.mark.parametrize("step", ["sync", "rename"])
def test_a_save_that_dies_leaves_the_others_whole(tmp_path, monkeypatch, step):
    save(tmp_path, 100)
    save(tmp_path, 200)

    def fail(*_):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("lab.files.sync_folder" if step == "sync" else "pathlib.Path.rename", fail)
        with pytest.raises(OSError, match="killed"):
            save(tmp_path, 300)
    assert [int(path.name[7:]) for path in checkpoints.candidates(tmp_path)] == [200, 100]
    found, passed = newest(tmp_path)
    assert (found.consumed_tokens, passed) == (200, [])
    assert save(tmp_path, 300).consumed_tokens == newest(tmp_path)[0].consumed_tokens == 300


def test_saving_the_same_place_again_replaces_it(tmp_path):
    save(tmp_path, 100)
    before = (tmp_path / "tokens-000000000000100" / "manifest.json").read_bytes()
    save(tmp_path, 100)
    assert (tmp_path / "tokens-000000000000100" / "manifest.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_folders_of_other_names_are_left_alone(tmp_path):
    for name in ("tokens-12", "tokens-000000000000900x", "notes"):
        (tmp_path / name).mkdir()
    for tokens in (100, 200, 300):
        save(tmp_path, tokens)
    assert newest(tmp_path)[0].consumed_tokens == 300
    assert {"tokens-12", "tokens-000000000000900x", "notes"} <= {path.name for path in tmp_path.iterdir()}
    shutil.rmtree(tmp_path / "notes")


def test_a_published_folder_replaces_what_stood_there(tmp_path):
    for content in ("old", "new"):
        (tmp_path / "writing").mkdir()
        (tmp_path / "writing" / content).write_text(content)
        publish_folder(tmp_path / "writing", tmp_path / "final")
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["new"]


def test_broken_ones_do_not_push_out_what_is_saved_next(tmp_path):
    # the run goes on from 200 and saves at 250, for instance when it is stopped by a signal
    for tokens in (200, 300, 400):
        save(tmp_path, tokens, keep=3)
    for tokens in (300, 400):
        flip(tmp_path / f"tokens-{tokens:015d}" / "state.ckpt")
    assert newest(tmp_path)[0].consumed_tokens == 200
    saved = save(tmp_path, 250, keep=2)
    assert newest(tmp_path)[0] == saved
