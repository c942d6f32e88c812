"""Results on disk: rows of .jsonl files, appended whole and known by name, so that a stopped measurement resumes.

A cell is one number of a table, such as one depth at one length. Its row states what was measured, and on what and how,
and is appended as soon as the number is known; until then the cell's finished tests lie in a file of their own, which
ends in .part. Rows that agree in the fields they are named by are the same measurement.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.errors import CheckpointError
from lab.files import writing
from lab.probe.effective_length import ResultStore
from lab.train.folder import RunFolder

Row = dict[str, Any]


class Results:
    """The rows of one file, each by the fields that name it.

    Opening the file cuts off a last line without its end, which a crash in the middle of writing leaves.

    Raises: CheckpointError for another broken line; ConfigError where the file cannot be written.
    """

    def __init__(self, path: Path, named_by: Sequence[str]) -> None:
        self.path, self.named_by = path, tuple(named_by)
        with writing(f"-o {path.parent}", "folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                content = path.read_bytes()
                os.truncate(path, content.rfind(b"\n") + 1)
            self.known = {self.name(row): row for row in RunFolder(path.parent).read(path.name)}

    def __iter__(self) -> Iterator[Row]:
        """Go through all rows, the newest of each name."""
        return iter(self.known.values())

    def name(self, row: Mapping[str, Any]) -> str:
        """Write what a row is named by."""
        return json.dumps([row.get(field) for field in self.named_by])

    def digest(self, row: Mapping[str, Any]) -> str:
        """Shorten a row's name for file names."""
        return shortened(self.name(row))

    def find(self, row: Mapping[str, Any]) -> Row | None:
        """Return the finished row of the same name."""
        return self.known.get(self.name(row))

    def alike(self, row: Mapping[str, Any], fields: Sequence[str]) -> list[Row]:
        """List the rows that agree with one in some fields."""
        return [other for other in self if all(other.get(field) == row[field] for field in fields)]

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; they are on the disk when this returns."""
        new = [dict(row) for row in rows]
        with writing(f"-o {self.path.parent}", "folder"), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in new))
            file.flush()
            os.fsync(file.fileno())
        self.known |= {self.name(row): row for row in new}

    def add(self, row: Mapping[str, Any], tests: tuple[str, Sequence[Row]] | None = None) -> Row:
        """Append the row of a finished cell; `tests`, a file name and records, are written before it.

        Raises: ConfigError where a file cannot be written.
        """
        whole = dict(row)
        if tests is not None:
            write_rows(self.path.parent / tests[0], tests[1], f"-o {self.path.parent}", "folder")
            whole["cases"] = tests[0]
        self.append([whole])
        if tests is not None:
            self.part(tests[0]).unlink(missing_ok=True)
        return whole

    def started(self, tests: str) -> Results:
        """Open the finished tests of a cell, whose file will be `tests`."""
        return Results(self.part(tests), ("test",))

    def part(self, tests: str) -> Path:
        """Name the file of a cell's finished tests."""
        return self.path.parent / f"{tests}.part"


class FinishedTests(ResultStore):
    """The finished needle tests of one key, in tests-TOKENS-KEY.jsonl; the file's first line holds the key.

    The key holds all that decides a test's outcome: checkpoint, position methods, protocol, text, seed. How many tests
    there are, at which lengths, and what passes is not in it: a probe that asks for more reuses the tests of one that
    asked for less. `by` is the field of a test's length or distance. `report` is called with the number of tests just
    added.
    """

    def __init__(self, folder: Path, consumed_tokens: int, key: Mapping[str, Any], by: str = "length") -> None:
        self.by = by
        head = {"key": dict(key)}
        self.path = folder / f"tests-{consumed_tokens:015d}-{shortened(json.dumps(key, sort_keys=True))}.jsonl"
        self.report: Any = lambda tests: None
        self.file = Results(self.path, (by, "test"))
        if not self.file.known:
            self.file.append([head])
        first, *rows = self.file
        if first != head:
            raise CheckpointError(f"{self.path}: its first line names other settings; move the file away")
        self.rows: dict[tuple[int, int], Row] = {(row[by], row["test"]): row for row in rows}

    def known(self, length: int) -> Mapping[int, Row]:
        """Return the finished tests of a length by number."""
        return {test: row for (other, test), row in self.rows.items() if other == length}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Add finished tests; they are on the disk when this returns."""
        named = {test: {self.by: length, "test": test, **row} for test, row in rows.items()}
        self.file.append(named.values())
        self.rows |= {(length, test): row for test, row in named.items()}
        self.report(len(named))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], option: str, other: str = "file") -> None:
    """Write a file of rows, whole or not at all; `option` is its name on the command line.

    Raises: ConfigError where the file cannot be written.
    """
    with writing(option, other):
        RunFolder(path.parent).write_records(path.name, [dict(row) for row in rows])


def shortened(text: str) -> str:
    """Name a text by 8 hexadecimal digits of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
