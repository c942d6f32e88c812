import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval.engine.answers import FinishedTests
from eval.engine.rows import Results
from lab.core.errors import CheckpointError
from tests.refusals import refused

KEY = {"weights": "abc", "method": "rope+plain", "protocol": "ours", "seed": 0}
ROW = {"length": 128, "test": 0, "answer": " 12 \u00e9\n", "found": 1}
NEXT = {**ROW, "test": 1}
# Written at ba500420, before one class stored all results.
EARLIER = (
    '{"key": {"weights": "abc", "method": "rope+plain", "protocol": "ours", "seed": 0}, "hash": "beef7a83f41652ed"}\n'
    '{"length": 128, "test": 0, "answer": " 12 \\u00e9\\n", "found": 1, "hash": "42c0820a8277e1cf"}\n'
)


def opened(folder, **key):
    return Results(folder / "tests-1.jsonl", ("length", "test"), {**KEY, **key})


@pytest.fixture
def results(tmp_path):
    results = opened(tmp_path)
    results.append([ROW])
    return results


def test_a_file_of_an_earlier_command_is_read_and_written_the_same(results, tmp_path):
    assert results.path.read_text() == EARLIER
    assert opened(tmp_path).find({"length": 128, "test": 0}) == ROW
    with refused(f"{results.path}: line 1 was changed", error=CheckpointError):
        opened(tmp_path, seed=1)


def test_a_probe_loads_the_tests_of_one_length(results, tmp_path):
    counted = []
    bar = SimpleNamespace(update=id, count_finished=counted.append)
    finished = FinishedTests(opened(tmp_path), bar, n_tests=2)
    finished.save(256, {3: {"found": 0}, 0: {"found": 1}})
    assert FinishedTests(opened(tmp_path), bar, 2).load(128) == {0: ROW}
    assert finished.load(256) == {n: {"length": 256, "test": n, "found": n == 0} for n in (0, 3)}
    assert counted == [1, 1]  # test 3 is none of the first two


BROKEN = [
    ("12", "13"),
    ('"found": 1', '"found": 2'),
    (', "hash"', ', "sum"'),
    (".+", "[1, 2]"),
    (".+", "null"),
    (".+", ""),
]


@pytest.mark.parametrize(("part", "other"), BROKEN)
def test_a_changed_line_is_refused_by_its_number(results, tmp_path, part, other):
    results.append([NEXT])
    *first, last = results.path.read_text().splitlines(keepends=True)
    results.path.write_text("".join([*first, re.sub(part, other, last, count=1)]))
    with refused(f"{results.path}: line 3 {'is no record' if part == '.+' else 'was changed'}", error=CheckpointError):
        opened(tmp_path)
    results.path.write_text("".join(first))  # as the message says
    assert opened(tmp_path).find(ROW) == ROW


def test_opening_a_whole_file_does_not_cut_what_another_process_appends(results, tmp_path, monkeypatch):
    read = Path.read_bytes

    def appended_after(path):
        content = read(path)
        results.append([NEXT])
        return content

    monkeypatch.setattr(Path, "read_bytes", appended_after)
    opened(tmp_path)
    monkeypatch.undo()
    assert opened(tmp_path).find(NEXT) == NEXT


def test_a_torn_line_is_dropped_wherever_it_is_torn(results, tmp_path):
    whole = results.path.read_bytes()
    results.append([NEXT])
    both = results.path.read_bytes()
    for cut in (*range(0, len(whole) - 3, 9), *range(len(whole) - 3, len(whole) + 4), *range(len(whole), len(both), 9)):
        results.path.write_bytes(both[:cut])
        again = opened(tmp_path)
        assert (again.find(ROW) is not None) == (len(whole) <= cut)
        again.append([{**ROW, "test": 5}])
        assert [row["test"] for row in opened(tmp_path) if "test" in row] == [0, 5][len(whole) > cut :]
