"""Runs a command in this process and reads what it wrote."""

import json
from pathlib import Path

from tests.refusals import check_faults

__all__ = ["check_faults", "rows_in", "rows_named", "runner", "size_of", "words_of"]


def runner(main, bar=None):
    """Make what runs a command's words, a list or one string: status, output and errors, but for a progress bar's."""

    def run(words, capsys):
        status = main([str(word) for word in (words.split() if isinstance(words, str) else words)])
        out, err = capsys.readouterr()
        return status, out, "".join(x for x in err.splitlines(keepends=True) if bar is None or f"{bar}:" not in x)

    return run


def rows_in(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def words_of(text):
    """Split every line into its words, so that no test depends on the width of a column."""
    return [line.split() for line in text.splitlines() if line]


def rows_named(name):
    return lambda folder: rows_in(folder / name)


def size_of(path):
    """Read a PNG's width and height."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
