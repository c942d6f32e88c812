import json

import numpy as np
import pytest

from lab.counts import PositionCounts
from lab.errors import CheckpointError
from lab.files import write_atomic, write_json
from lab.train.folder import RunFolder
from tests.refusals import refused


def lines(path):
    return path.read_text().splitlines()


def test_records_are_whole_lines_in_order(tmp_path):
    folder = RunFolder(tmp_path)
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "note": "zwei\nlines"}]
    for record in records:
        folder.append("metrics.jsonl", record)
    assert [json.loads(line) for line in lines(tmp_path / "metrics.jsonl")] == records
    assert list(folder.read("metrics.jsonl")) == records


def test_a_file_that_is_not_there_has_no_records(tmp_path):
    assert list(RunFolder(tmp_path).read("probes.jsonl")) == []


@pytest.mark.parametrize("last", ["{", '{"ste', '{"step": 3, "l', '{"step": 22}'])  # the last may have been 222
def test_a_last_line_without_its_end_is_ignored(tmp_path, last):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n' + last)
    assert list(RunFolder(tmp_path).read("metrics.jsonl")) == [{"step": 1}, {"step": 2}]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with refused(f"{tmp_path / 'metrics.jsonl'}: line 2 is not JSON (", error=CheckpointError):
        list(RunFolder(tmp_path).read("metrics.jsonl"))


def test_rewind_drops_what_came_after_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    for tokens in (100, 200, 300):
        folder.append("metrics.jsonl", {"consumed_tokens": tokens, "loss": 1.0})
        folder.append("probes.jsonl", {"consumed_tokens": tokens, "length": 64})
        folder.append("probes.jsonl", {"consumed_tokens": tokens, "effective_length": 64})
        folder.write_cases(tokens, [{"test": 0}])
        folder.write_counts_at(tokens, PositionCounts(4))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"consumed_tokens": 150, "lo')
    (tmp_path / "cases" / "tokens-notes.jsonl").write_text("")
    folder.rewind(200)
    assert [r["consumed_tokens"] for r in folder.read("metrics.jsonl")] == [100, 200]
    assert [r["consumed_tokens"] for r in folder.read("probes.jsonl")] == [100, 100, 200, 200]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n"), "the next line begins a line"
    names = sorted(path.name for path in (tmp_path / "cases").iterdir())
    assert names == ["tokens-000000000000100.jsonl", "tokens-000000000000200.jsonl", "tokens-notes.jsonl"]
    names = sorted(path.name for path in (tmp_path / "counts").iterdir())
    assert names == ["tokens-000000000000100.npz", "tokens-000000000000200.npz"]


def test_rewind_drops_a_probe_that_was_cut_short(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.last_probe() == (0, {})
    folder.append("probes.jsonl", {"consumed_tokens": 100, "length": 64})
    folder.append("probes.jsonl", {"consumed_tokens": 100, "effective_length": 64})
    folder.append("probes.jsonl", {"consumed_tokens": 200, "length": 64})  # its summary, the last line, is missing
    assert folder.last_probe() == (100, {"consumed_tokens": 100, "effective_length": 64})
    folder.rewind(200)
    assert [r["consumed_tokens"] for r in folder.read("probes.jsonl")] == [100, 100]


def test_rewind_of_an_empty_folder_or_to_the_end_changes_nothing(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rewind(0)
    assert list(tmp_path.iterdir()) == []
    folder.append("metrics.jsonl", {"consumed_tokens": 100, "loss": 0.1})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    folder.rewind(100)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_counts_are_saved_as_lengths_and_frequency(tmp_path):
    counts = PositionCounts(4)
    counts.add_segments([3, 1])
    RunFolder(tmp_path).write_counts(counts)
    saved = np.load(tmp_path / "counts.npz")
    # lengths 3 and 1: f(0) = 3 + 1, f(1) = 2, f(2) = 1, f(3) = 0
    assert saved["f"].tolist() == [4, 2, 1, 0]
    assert saved["lengths"].tolist() == [0, 1, 0, 1, 0]


def test_cases_are_one_file_for_each_probe(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_cases(1_000_000, [{"test": 0, "found": 2}, {"test": 1, "found": 0}])
    written = tmp_path / "cases" / "tokens-000000001000000.jsonl"
    assert [json.loads(line)["found"] for line in lines(written)] == [2, 0]


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"ü": 1})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": 1}

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"half")
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": 1}
