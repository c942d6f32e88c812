"""Results on disk, and what a stopped measurement goes on from: rows of .jsonl files, appended whole, known by name.

A cell is one number of a table, such as one depth at one length. Its row states what was measured, on what and how, and
is appended as soon as the number is known. Until then the cell's finished tests lie in a file of their own, which ends
in .part. Rows that agree in the fields they are named by are the same measurement.

Finished work that a command reads back in place of doing it again is `Finished`. Each of its lines has a hash of the
line and of the key, which is all that decides the outcome. The first line of a file is the key:

    {"key": {"weights": "9c7344f7", "method": "rope+plain", "seed": 0}, "hash": "5d1c..."}
    {"length": 128, "test": 0, "answer": " 71432.", "hash": "e07f..."}
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from eval.engine.rows import Row, finite
from lab import errors, files
from lab.runs.folder import RunFolder

HASH = "hash"


class Results:
    """The rows of one file, each by the fields that name it.

    Opening the file cuts off a last line without its end, which a crash in the middle of writing leaves.

    Raises: CheckpointError for another broken line; ConfigError where the file cannot be written.
    """

    def __init__(self, path: Path, named_by: Sequence[str]) -> None:
        self.path = path
        self.named_by = tuple(named_by)
        if path.is_symlink():
            raise errors.ConfigError(f"{path}: is a link, results might go elsewhere; delete it, or use another -o")
        with files.writing(f"-o {path.parent}", "folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                content = path.read_bytes()
                if not content.endswith(b"\n"):  # another process may have appended since
                    os.truncate(path, content.rfind(b"\n") + 1)
            self.kept = {self.name(row): row for row in self.read()}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.kept.values())

    def read(self) -> Iterator[Row]:
        return RunFolder(self.path.parent).read(self.path.name)

    def line(self, row: Row) -> str:
        return json.dumps(row)

    def named(self, row: Mapping[str, object]) -> Row:
        return {field: row.get(field) for field in self.named_by}

    def name(self, row: Mapping[str, object]) -> str:
        return json.dumps([*self.named(row).values()])

    def digest(self, row: Mapping[str, object]) -> str:
        return shortened(self.name(row))

    def find(self, row: Mapping[str, object]) -> Row | None:
        return self.kept.get(self.name(row))

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append rows; they are on the disk when this returns."""
        new = [dict(row) for row in rows]
        with files.writing(f"-o {self.path.parent}", "folder"), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(self.line(row) + "\n" for row in new))
            file.flush()
            os.fsync(file.fileno())
        self.kept |= {self.name(row): row for row in new}

    def add(self, row: Mapping[str, object], tests: tuple[str, Sequence[Row]] | None = None) -> Row:
        """Append the row of a finished cell; `tests`, a file name and records, are written before it.

        Raises: ConfigError where a file cannot be written.
        """
        whole = dict(row)
        if tests is not None:
            write_rows(self.path.parent / tests[0], tests[1])
            whole["cases"] = tests[0]
        self.append([whole])
        if tests is not None:
            self.part(tests[0]).unlink(missing_ok=True)
        return whole

    def part(self, tests: str) -> Path:
        return self.path.parent / f"{tests}.part"


class Finished(Results):
    """Finished work of one key, each line with a hash.

    Raises: CheckpointError for a line whose hash is another one's.
    """

    def __init__(self, path: Path, key: Mapping[str, object], named_by: Sequence[str]) -> None:
        self.key = json.dumps(key, sort_keys=True)
        super().__init__(path, named_by)
        if not self.kept:
            self.append([{"key": dict(key)}])

    def hash(self, row: Row) -> str:
        return shortened(self.key + json.dumps(row), 16)

    def read(self) -> Iterator[Row]:
        """Read the rows, and refuse one that was changed after it was written."""
        for number, row in enumerate(super().read(), start=1):
            if row.pop(HASH, None) != self.hash(row):
                fault = f"line {number} was changed, its hash is another; delete the line, and it is measured again"
                raise errors.CheckpointError(f"{self.path}: {fault}")
            yield row

    def line(self, row: Row) -> str:
        return super().line({**row, HASH: self.hash(row)})


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a file of rows, whole or not at all.

    Raises: ConfigError where the file cannot be written.
    """
    with files.writing(f"-o {path.parent}", "folder"):
        RunFolder(path.parent).write_records(path.name, [finite(row) for row in rows])


def shortened(text: str, digits: int = 8) -> str:
    """Name a text by hexadecimal digits of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
