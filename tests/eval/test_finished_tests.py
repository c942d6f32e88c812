import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval.engine.answers import FinishedTests
from lab.core.errors import CheckpointError
from lab.results.store import Store
from tests.refusals import refused

KEY = {"weights": "abc", "method": "rope+plain", "protocol": "ours", "seed": 0}
TEST = {"cell": "length 128", "length": 128, "test": 0, "answer": " 12 \u00e9\n", "found": 1}
NEXT = {**TEST, "test": 1}
ROW = {"length": 128, "n": 2, "score": 0.5, "cell": "length 128"}


def opened(folder, **key):
    return Store(folder, "probe-tiny", {**KEY, **key}, ("length", "n"))


@pytest.fixture
def results(tmp_path):
    results = opened(tmp_path)
    results.append([TEST])
    return results


def test_a_key_has_one_file_with_its_tests_and_its_rows(results, tmp_path):
    """The hashes are those of sha256sum, of the key and the line as they are in the file."""
    results.add([ROW, {**ROW, "seconds": 3}])
    results.add([ROW])  # which is stored
    key, *lines = results.path.read_text().splitlines()
    for line in lines:
        text, _, digest = line.partition(', "hash": "')
        whole = json.dumps(KEY, sort_keys=True) + text + "}"
        assert digest == hashlib.sha256(whole.encode()).hexdigest()[:16] + '"}'
    assert (json.loads(key)["key"], len(lines)) == (KEY, 3)
    again = opened(tmp_path)
    assert (again.tests["length 128"], again.find({"length": 128, "n": 2})["score"]) == ({0: TEST}, 0.5)
    other = opened(tmp_path, seed=1)
    assert (other.path != again.path, other.path.name.startswith("probe-tiny-"), dict(other.tests)) == (True, True, {})
    other.path.write_text(results.path.read_text())
    with refused(f"{other.path}: line 1 was changed", error=CheckpointError):
        opened(tmp_path, seed=1)


def test_a_probe_loads_the_tests_of_one_length(results, tmp_path):
    counted = []
    bar = SimpleNamespace(update=id, count_finished=counted.append)
    finished = FinishedTests(opened(tmp_path), "length", bar, n_tests=2)
    finished.save(256, {3: {"found": 0}, 0: {"found": 1}})
    again = FinishedTests(opened(tmp_path), "length", bar, 2)
    assert again.load(128) == {0: TEST}
    assert finished.load(256) == {n: {"cell": "length 256", "length": 256, "test": n, "found": n == 0} for n in (0, 3)}
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
    assert opened(tmp_path).tests["length 128"] == {0: TEST}


def test_opening_a_whole_file_does_not_cut_what_another_process_appends(results, tmp_path, monkeypatch):
    read = Path.read_bytes

    def appended_after(path):
        content = read(path)
        results.append([NEXT])
        return content

    monkeypatch.setattr(Path, "read_bytes", appended_after)
    opened(tmp_path)
    monkeypatch.undo()
    assert opened(tmp_path).tests["length 128"][1] == NEXT


def test_a_torn_line_is_dropped_wherever_it_is_torn(results, tmp_path):
    whole = results.path.read_bytes()
    results.append([NEXT])
    both = results.path.read_bytes()
    for cut in (*range(0, len(whole) - 3, 9), *range(len(whole) - 3, len(whole) + 4), *range(len(whole), len(both), 9)):
        results.path.write_bytes(both[:cut])
        again = opened(tmp_path)
        assert (0 in again.tests["length 128"]) == (len(whole) <= cut)
        again.append([{**TEST, "test": 5}])
        assert [*opened(tmp_path).tests["length 128"]] == [0, 5][len(whole) > cut :]
