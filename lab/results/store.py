"""Files of results, one for each key, from which a stopped measurement continues.

A file is MEASURE-MODEL-DIGEST.jsonl, DIGEST that of its key: what decides the outcome, such as weights and position
method. Its first line is the key, the others are finished tests and rows, in the order in which they were known. Each
line has a hash of the line and the key:

    {"key": {"weights": "9c7344f7", "method": "rope+plain"}, "started": "2026-05-01T12:00:00+00:00", "hash": "5d1c..."}
    {"cell": "length 128", "test": 0, "answer": " 71432.", "hash": "e07f..."}
    {"length": 128, "n": 1, "score": 1.0, "cell": "length 128", "hash": "0b5a..."}

A cell is the tests behind one row, which has the cell's name. Rows that agree in the fields they are named by are the
same measurement, of which the last one counts.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lab.core import files
from lab.core.errors import CheckpointError, ConfigError, first_line
from lab.core.types import Row


class Store:
    """The rows and finished tests of one key.

    Raises: CheckpointError for a broken line, or one whose hash is another one's; ConfigError where the file cannot be
        written.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, object], named_by: Sequence[str] = ()) -> None:
        digest = short_hash(json.dumps(key, sort_keys=True))
        self.path = folder / f"{name.replace('/', '-')}-{digest}.jsonl"
        self.key = key
        self.named_by = tuple(named_by)
        self.rows: dict[str, Row] = {}
        self.tests: dict[str, dict[int | str, Row]] = defaultdict(dict)  # by cell and number
        # Results are appended: a link, as in a folder of somebody else, would change a file elsewhere.
        if self.path.is_symlink():
            raise ConfigError(f"{self.path}: is a link, results might go elsewhere; delete it, or use another -o")
        with files.writing(f"-o {folder}", "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                # A crash in the middle of writing leaves a last line without its end, which is cut off.
                content = self.path.read_bytes()
                if not content.endswith(b"\n"):  # another process may have appended since
                    os.truncate(self.path, content.rfind(b"\n") + 1)
        self.head = {"key": dict(key), "started": datetime.now(UTC).isoformat()}
        is_new = True
        for record in read_records(self.path, key):
            self.remember(record)
            is_new = False
        if is_new:
            self.append([self.head])

    def remember(self, record: Row) -> None:
        if "test" in record:
            self.tests[record["cell"]][record["test"]] = record
        elif "key" not in record:
            self.rows[self.name(record)] = record

    def name(self, row: Mapping[str, object]) -> str:
        return json.dumps([row.get(field) for field in self.named_by])

    def find(self, row: Mapping[str, object]) -> Row | None:
        return self.rows.get(self.name(row))

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append rows and tests; they are on the disk when this returns."""
        lines = ""
        for record in map(dict, records):
            self.remember(record)
            lines += self.format_line(record)
        with files.writing(f"-o {self.path.parent}", "folder"), self.path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            # Finished tests are never run again, so that they must survive a loss of power.
            os.fsync(file.fileno())

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append the rows that are not stored, or have changed in more than the seconds that they took."""
        new = []
        for row in rows:
            before = self.find(row)
            if before is None or {**before, "seconds": row.get("seconds")} != {"seconds": None, **row}:
                new.append(row)
        if new:
            self.append(new)

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Replace the file by rows, which are all that belongs to the key."""
        with files.writing(f"-o {self.path.parent}", "folder"):
            files.write_atomic(self.path, "".join(map(self.format_line, [self.head, *rows])).encode())

    def format_line(self, record: Mapping[str, object]) -> str:
        return json.dumps({**record, "hash": hash_record(self.key, record)}) + "\n"


def hash_record(key: Mapping[str, object], record: Mapping[str, object]) -> str:
    # With the key in its hash, a line that is copied from another file is rejected.
    return short_hash(f"{json.dumps(key, sort_keys=True)}{json.dumps(record)}", 16)


def short_hash(text: str, digits: int = 8) -> str:
    """Name a text by hexadecimal digits of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def read_records(path: Path, key: Mapping[str, object] | None = None, needed: Collection[str] = ()) -> Iterator[Row]:
    """Read the lines of a file; in one that begins with a key, each must have its hash, and the key must be `key`.

    Raises: CheckpointError for a broken or changed line.
    """
    for number, (_, record) in enumerate(read_lines(path, needed), start=1):
        if number == 1 and key is None:
            key = record.get("key")
        if key is not None and record.pop("hash", None) != hash_record(key, record):
            error = f"line {number} was changed, its hash is another; delete the line, and it is measured again"
            raise CheckpointError(f"{path}: {error}")
        yield record


def read_lines(path: Path, needed: Collection[str] = (), size: int | None = None) -> Iterator[tuple[bytes, Row]]:
    """Read the lines of a file, or of its first `size` bytes, each with the record that it contains.

    A last line truncated by a crash is skipped, and a missing file has no lines.

    Raises: CheckpointError for another line without the numbers needed, and for a file that cannot be read.
    """
    end = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                end += len(line)
                if not line.endswith(b"\n") or (size is not None and end > size):
                    return
                yield line, parse_record(path, number, line, needed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); restore it") from error


def parse_record(path: Path, number: int, line: bytes, needed: Collection[str]) -> Row:
    """Parse one line.

    Raises: CheckpointError.
    """
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("must be a JSON object")
        if any(not isinstance(record[key], int) for key in needed):
            raise ValueError(f"must hold whole numbers: {', '.join(needed)}")
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        reason = f"line {number} is no record ({first_line(error)})"
        raise CheckpointError(f"{path}: {reason}; correct or delete the line") from error
    return record
