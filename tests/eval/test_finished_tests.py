import pytest

from eval.engine.answers import FinishedTests
from lab.errors import ConfigError

KEY = {"weights": "abc", "method": "rope+plain", "protocol": "ours", "seed": 0}
ROW = {"prompt_hash": "0f", "numbers": ["12", "34"], "depths": [0.125, 0.5], "answer": " 12 \u00e9\n", "found": 1}


def opened(folder, **key):
    return FinishedTests(folder, 4096, {**KEY, **key})


def test_a_torn_line_is_dropped_wherever_it_is_torn(tmp_path):
    finished = opened(tmp_path)
    finished.keep(128, {0: ROW})
    whole = finished.path.read_bytes()
    finished.keep(128, {1: ROW})
    both = finished.path.read_bytes()
    for cut in (*range(0, len(whole) - 3, 9), *range(len(whole) - 3, len(whole) + 4), *range(len(whole), len(both), 9)):
        finished.path.write_bytes(both[:cut])
        again = opened(tmp_path)
        kept = {0} if len(whole) <= cut else set()
        assert again.known(128).keys() == kept
        again.keep(128, {5: ROW})
        assert opened(tmp_path).known(128).keys() == {*kept, 5}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path / "file" / "eval")
    assert str(caught.value) == (
        f"-o {tmp_path / 'file' / 'eval'}: cannot be written (Not a directory); name another folder"
    )
