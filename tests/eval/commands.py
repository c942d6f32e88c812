"""Runs a command in this process and reads what it wrote."""

import json
from pathlib import Path

from lab.results.store import read_records
from tests.refusals import check_faults

__all__ = ["check_faults", "lines_of", "rows_in", "runner", "size_of", "words_of"]


def runner(main, bar=None):
    """Make what runs a command's words, a list or one string: status, output and errors, but for a progress bar's."""

    def run(words, capsys):
        status = main([str(word) for word in (words.split() if isinstance(words, str) else words)])
        out, err = capsys.readouterr()
        return status, out, "".join(x for x in err.splitlines(keepends=True) if bar is None or f"{bar}:" not in x)

    return run


def rows_in(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def results_in(path):
    """Read the rows of a file of a measure, without its key and its tests."""
    return [record for record in read_records(Path(path)) if "key" not in record and "test" not in record]


def words_of(text):
    """Split every line into its words, so that no test depends on the width of a column."""
    return [line.split() for line in text.splitlines() if line]


def lines_of(folder, measure, *, tests=False):
    """Read the rows of a measure, or its tests, in the order in which its files were finished."""
    files = sorted(Path(folder).glob(f"{measure}-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    records = [record for path in files for record in read_records(path) if "key" not in record]
    return [record for record in records if ("test" in record) == tests]


def size_of(path):
    """Read a PNG's width and height."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
