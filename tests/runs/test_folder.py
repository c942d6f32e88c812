"""The run folder: whole lines and whole files, records that end at a checkpoint, a line for each that is broken."""

import errno
import json
import os
import tracemalloc

import pytest

from lab.core.errors import CheckpointError, DiskError
from lab.core.files import write_atomic, write_hashed, write_json
from lab.runs.folder import RunFolder
from lab.verify import check_order
from tests.refusals import refused


@pytest.mark.parametrize("last", ["{", '{"consumed_tokens": 3, "l', '{"consumed_tokens": 22}'])  # or 222
def test_a_last_line_without_its_end_is_ignored(tmp_path, last):
    (tmp_path / "metrics.jsonl").write_text('{"consumed_tokens": 1}\n{"consumed_tokens": 2}\n' + last)
    assert [record["consumed_tokens"] for record in RunFolder(tmp_path).records("metrics.jsonl")] == [1, 2]


WORDS = [b'{"step": ', b"7", b'{"step": 2}', b'{"consumed_tokens": "x"}', b'{"note": "\xff"}', b"[" * 100_000]


@pytest.mark.parametrize("line", WORDS, ids=lambda line: str(line)[:20])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"consumed_tokens": 1}\n' + line + b"\n")
    with refused(f"{tmp_path / 'metrics.jsonl'}: line 2 ", error=CheckpointError):
        RunFolder(tmp_path).rewind(5)


def test_records_are_read_in_parts(tmp_path):
    """Checking and rewinding 30,000 lines takes no more memory than 300."""
    peaks = {}
    for n in (300, 30_000):
        run = tmp_path / str(n)
        run.mkdir()
        lines = "".join(f'{{"consumed_tokens": {k}, "step": {k}, "text": "{k:050}"}}\n' for k in range(n))
        (run / "metrics.jsonl").write_text(lines)
        tracemalloc.start()
        check_order(RunFolder(run), "metrics.jsonl")
        RunFolder(run).rewind(n - 2)
        peaks[n] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (run / "metrics.jsonl").read_text() == lines[: lines.rindex("\n", 0, -1) + 1]
    assert peaks[30_000] < peaks[300] + 100_000


@pytest.mark.parametrize("data", [b"\xff", b'{"threads"', b"[1]"], ids=str)
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
        with pytest.raises(DiskError, match=rf"^{path.parent}/.*: needs more, .* are free \(No space .*; "):
            write(path, b"x" * 5000)
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": 1}
    assert not list(path.parent.glob(".*"))


def test_a_record_that_does_not_fit_is_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskError, match=rf"^{tmp_path}/metrics.jsonl: needs 14 bytes, .*; make room .* --resume$"):
        RunFolder(tmp_path).append("metrics.jsonl", {"step": 123})
