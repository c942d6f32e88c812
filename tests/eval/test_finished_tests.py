from pathlib import Path

import pytest

from eval.engine.answers import FinishedTests
from lab.core.errors import CheckpointError, ConfigError
from tests.refusals import refused

KEY = {"weights": "abc", "method": "rope+plain", "protocol": "ours", "seed": 0}
ROW = {"prompt_hash": "0f", "numbers": ["12", "34"], "depths": [0.125, 0.5], "answer": " 12 \u00e9\n", "found": 1}


def opened(folder, **key):
    return FinishedTests(folder / "tests-1.jsonl", {**KEY, **key})


def test_tests_of_other_settings_are_refused(tmp_path):
    opened(tmp_path).save(128, {0: ROW})
    for other in ({"weights": "abd"}, {"protocol": "released"}, {"seed": 1}, {"method": "pi+plain"}):
        with pytest.raises(CheckpointError, match="line 1 was changed"):
            opened(tmp_path, **other)
    assert opened(tmp_path).load(128) == {0: {"length": 128, "test": 0, **ROW}}


@pytest.mark.parametrize("change", [("12", "13"), ('"found": 1', '"found": 2'), (', "hash"', ', "sum"')])
def test_a_changed_line_is_refused_by_its_number(tmp_path, change):
    finished = opened(tmp_path)
    finished.save(128, {0: ROW, 1: ROW})
    *first, last = finished.path.read_text().splitlines(keepends=True)
    finished.path.write_text("".join([*first, last.replace(*change, 1)]))
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path)
    assert str(caught.value).startswith(f"{finished.path}: line 3 was changed, ")
    finished.path.write_text("".join(first))  # as the message says
    assert opened(tmp_path).load(128) == {0: {"length": 128, "test": 0, **ROW}}


@pytest.mark.parametrize("line", ["[1, 2]", "5", "null", '"text"', ""])
def test_a_line_that_is_no_object_is_refused(tmp_path, line):
    finished = opened(tmp_path)
    finished.save(128, {0: ROW})
    with finished.path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(CheckpointError, match="line 3 is no record"):
        opened(tmp_path)


def test_opening_a_whole_file_does_not_cut_what_another_process_appends(tmp_path, monkeypatch):
    finished = opened(tmp_path)
    finished.save(128, {0: ROW})
    read = Path.read_bytes

    def appended_after(path):
        content = read(path)
        finished.save(128, {len(finished.kept): ROW})
        return content

    monkeypatch.setattr(Path, "read_bytes", appended_after)
    opened(tmp_path)
    monkeypatch.undo()
    assert opened(tmp_path).load(128).keys() == finished.load(128).keys()


def test_a_torn_line_is_dropped_wherever_it_is_torn(tmp_path):
    finished = opened(tmp_path)
    finished.save(128, {0: ROW})
    whole = finished.path.read_bytes()
    finished.save(128, {1: ROW})
    both = finished.path.read_bytes()
    for cut in (*range(0, len(whole) - 3, 9), *range(len(whole) - 3, len(whole) + 4), *range(len(whole), len(both), 9)):
        finished.path.write_bytes(both[:cut])
        again = opened(tmp_path)
        kept = {0} if len(whole) <= cut else set()
        assert again.load(128).keys() == kept
        again.save(128, {5: ROW})
        assert opened(tmp_path).load(128).keys() == {*kept, 5}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with refused(f"-o {tmp_path / 'file' / 'eval'}: cannot be written (Not a directory)", error=ConfigError):
        opened(tmp_path / "file" / "eval")
