"""The run folder: whole lines and whole files, records that end at a checkpoint, a line for each that is broken."""

import errno
import json
import os

import numpy as np
import pytest

from lab.counts import PositionCounts, SavedCounts
from lab.errors import CheckpointError, DiskError
from lab.files import write_atomic, write_hashed, write_json
from lab.runs.folder import RunFolder
from tests.refusals import refused


@pytest.mark.parametrize("last", ["{", '{"step": 3, "l', '{"step": 22}'])  # the last may have been 222
def test_a_last_line_without_its_end_is_ignored(tmp_path, last):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n' + last)
    assert list(RunFolder(tmp_path).read("metrics.jsonl")) == [{"step": 1}, {"step": 2}]


WORDS = [b'{"step": ', b"7", b'{"step": 2}', b'{"consumed_tokens": "x"}', b'{"note": "\xff"}', b"[" * 100_000]


@pytest.mark.parametrize("line", WORDS, ids=lambda line: str(line)[:20])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"consumed_tokens": 1}\n' + line + b"\n")
    with refused(f"{tmp_path / 'metrics.jsonl'}: line 2 ", error=CheckpointError):
        RunFolder(tmp_path).rewind(5)


def test_rewind_drops_what_came_after_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rewind(0)
    assert list(tmp_path.iterdir()) == []
    for tokens in (100, 200, 300):
        folder.append("metrics.jsonl", {"consumed_tokens": tokens, "loss": 1.0})
        folder.append("probes.jsonl", {"consumed_tokens": tokens, "length": 64})
        folder.append("probes.jsonl", {"consumed_tokens": tokens, "effective_length": 64})
        folder.write_cases(tokens, [{"test": tokens}])
        folder.write_counts(PositionCounts(4), tokens)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"consumed_tokens": 150, "lo')
    (tmp_path / "cases" / "tokens-notes.jsonl").write_text("")
    folder.rewind(200)
    assert [r["consumed_tokens"] for r in folder.read("metrics.jsonl")] == [100, 200]
    assert [r["consumed_tokens"] for r in folder.read("probes.jsonl")] == [100, 100, 200, 200]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n"), "the next line begins a line"
    names = sorted(path.name for path in (tmp_path / "cases").iterdir())
    assert names == ["tokens-000000000000100.jsonl", "tokens-000000000000200.jsonl", "tokens-notes.jsonl"]
    assert list(folder.read(f"cases/{names[1]}")) == [{"test": 200}]
    names = sorted(path.name for path in (tmp_path / "counts").iterdir())
    assert names == ["tokens-000000000000100.npz", "tokens-000000000000200.npz"]


def test_rewind_drops_a_probe_that_was_cut_short(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.last_probe() == 0
    folder.append("probes.jsonl", {"consumed_tokens": 100, "length": 64})
    folder.append("probes.jsonl", {"consumed_tokens": 100, "effective_length": 64})
    folder.append("probes.jsonl", {"consumed_tokens": 200, "length": 64})  # its summary, the last line, is missing
    assert folder.last_probe() == 100
    folder.rewind(200)
    assert [r["consumed_tokens"] for r in folder.read("probes.jsonl")] == [100, 100]


def test_counts_are_saved_as_lengths_and_frequency(tmp_path):
    counts, path = PositionCounts(4), tmp_path / "counts.npz"
    counts.add_segments([3, 1])
    RunFolder(tmp_path).write_counts(counts)
    saved = np.load(path)
    # lengths 3 and 1: f(0) = 3 + 1, f(1) = 2, f(2) = 1, f(3) = 0
    assert saved["f"].tolist() == [4, 2, 1, 0]
    assert saved["lengths"].tolist() == [0, 1, 0, 1, 0]
    assert len(SavedCounts.read(path).f) == 4
    path.write_bytes(path.read_bytes()[:-30])
    with refused(f"{path}: cannot be read (", error=CheckpointError):
        SavedCounts.read(path)


@pytest.mark.parametrize("data", [b"\xff", b'{"threads"', b"[1]", b'{"seed": 1}', b'{"threads": "all"}'], ids=str)
def test_a_broken_environment_is_one_line(tmp_path, data):
    (tmp_path / "environment.json").write_bytes(data)
    with refused(f"{tmp_path / 'environment.json'}: ", error=CheckpointError):
        RunFolder(tmp_path).threads()


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"ü": 1})

    def no_room(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    for write in (write_atomic, lambda path, data: write_hashed(path.with_name("new"), [data[:3000], data[3000:]])):
        with pytest.raises(DiskError, match=rf"^{path.parent}/.*: needs 5,000 bytes, .* are free \(No space .*; "):
            write(path, b"x" * 5000)
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": 1}
    assert not list(path.parent.glob(".*"))


def test_a_record_that_does_not_fit_is_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    remedy = "make room on this disk, or check it, and run the same command again, probe-lab fit with --resume"
    with pytest.raises(DiskError, match=rf"^{tmp_path}/metrics.jsonl: needs 14 bytes, .*; {remedy}$"):
        RunFolder(tmp_path).append("metrics.jsonl", {"step": 123})
