"""Full disks, and records that are damaged or of a newer version: one line for each."""

import errno
import json
import os

import numpy as np
import pytest

from lab.counts import PositionCounts, SavedCounts
from lab.errors import CheckpointError, DiskError
from lab.files import remove_leftovers, temporary_of, write_atomic, write_hashed
from lab.train.checkpoints import candidates, newest, open_checkpoint, publish, temporary_folder
from lab.train.folder import RunFolder
from tests.refusals import refused


def no_room(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_does_not_fit_is_one_line_with_both_sizes_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_room)
    for write in (write_atomic, lambda path, data: write_hashed(path, [data[:3000], data[3000:]])):
        path = tmp_path / "run" / write.__name__
        path.parent.mkdir(exist_ok=True)
        with refused(f"{path}: needs 5,000 bytes, {{}} bytes are free (No space left on device)", error=DiskError):
            write(path, b"x" * 5000)
        assert not list(path.parent.glob(".*"))


def test_a_record_that_does_not_fit_is_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    remedy = "make room on this disk and run the same command again, lab.fit with --resume"
    with pytest.raises(DiskError, match=rf"^{tmp_path}/metrics.jsonl: needs 14 bytes, .*; {remedy}$"):
        RunFolder(tmp_path).append("metrics.jsonl", {"step": 123})


def test_temporary_files_of_the_dead_are_removed_and_others_kept(tmp_path):
    dead, alive = 2**22 + 1, os.getpid()
    names = [f".a.tmp-{dead}", temporary_of(tmp_path / "a").name.replace(f"-{alive}-r", f"-{dead}-r")]
    kept = [f".a.tmp-{alive}", temporary_of(tmp_path / "a").name, ".a.tmp-my-host-2-77-r01234567", ".a.tmp-", "b"]
    for name in (*names, *kept):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    remove_leftovers(tmp_path, own=True)
    assert {path.name for path in tmp_path.iterdir()} == {".a.tmp-", "b"}


def save(root, tokens):
    (temporary_folder(root) / "state.ckpt").write_bytes(b"state")
    return publish(root, tokens, keep=2)


OUTSIDE = {"../../secret": {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb924"}}
FILES = [[], {"state.ckpt": "x"}, {"state.ckpt": {"sha256": "0"}}, OUTSIDE]


@pytest.mark.parametrize("files", FILES, ids=["list", "words", "no_size", "outside"])
def test_a_manifest_of_another_shape_is_passed_over(tmp_path, files):
    save(tmp_path, 100)
    manifest = save(tmp_path, 200).folder / "manifest.json"
    manifest.write_text(json.dumps({"files": files}))
    found, (line,) = newest(tmp_path)
    assert found.consumed_tokens == 100
    assert line.startswith(f"{manifest.parent}: manifest.json cannot be read (")


def test_a_checkpoint_of_a_newer_format_is_refused_by_its_number_and_not_passed_over(tmp_path):
    save(tmp_path, 100)
    folder = save(tmp_path, 200).folder
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 3}))
    for read in (lambda: newest(tmp_path), lambda: open_checkpoint(folder)):
        with refused(f"{manifest}: format 3 is unknown, this version reads up to 2", error=CheckpointError):
            read()


@pytest.mark.parametrize("at", [200, 300])
def test_a_file_that_is_named_as_a_checkpoint_is_passed_over_and_replaced(tmp_path, at):
    save(tmp_path, 100)
    (tmp_path / f"tokens-{at:015d}").write_text("a file")
    found, (line,) = newest(tmp_path)
    assert (found.consumed_tokens, line.count("\n")) == (100, 0)
    assert save(tmp_path, 200) == newest(tmp_path)[0]
    assert [path.name[-3:] for path in candidates(tmp_path)] == ["200", "100"]


WORDS = [b'{"consumed_tokens": "x"}', b'{"consumed_tokens": 1, "note": "\xff"}', b"[" * 100_000]


@pytest.mark.parametrize("line", [b"7", b"[1]", b'{"step": 2}', *WORDS], ids=lambda line: str(line)[:20])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"consumed_tokens": 1}\n' + line + b"\n")
    with refused(f"{tmp_path / 'metrics.jsonl'}: line 2 ", error=CheckpointError):
        RunFolder(tmp_path).rewind(5)


BROKEN = [b"\xff", b'{"threads"', b"[1]", b'{"seed": 1}', b'{"threads": "all"}', b'{"format": 3, "threads": 1}']


@pytest.mark.parametrize("data", BROKEN, ids=str)
def test_a_broken_environment_is_one_line(tmp_path, data):
    (tmp_path / "environment.json").write_bytes(data)
    with refused(f"{tmp_path / 'environment.json'}: ", error=CheckpointError):
        RunFolder(tmp_path).threads()


def test_counts_are_refused_by_format_and_damage(tmp_path):
    folder, path = RunFolder(tmp_path), tmp_path / "counts.npz"
    folder.write_counts(PositionCounts(4))
    values = dict(np.load(path))
    assert values.pop("format") == 2
    np.savez(path, **values)
    assert SavedCounts.read(path).max_len == 4
    np.savez(path, **values, format=3)
    with refused(f"{path}: format 3 is unknown, ", error=CheckpointError):
        SavedCounts.read(path)
    path.write_bytes(path.read_bytes()[:-30])
    with refused(f"{path}: cannot be read (", error=CheckpointError):
        SavedCounts.read(path)
