"""Files of records (.jsonl), read one line at a time, because they may outgrow the memory."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lab.core.errors import CheckpointError, first_line

Record = dict[str, Any]


def read_lines(path: Path, needed: Collection[str] = (), size: int | None = None) -> Iterator[tuple[bytes, Record]]:
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


def parse_record(path: Path, number: int, line: bytes, needed: Collection[str]) -> Record:
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


def ends_with_line(path: Path) -> bool:
    """Return whether a file is empty or its last line has an end."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        return file.read() in (b"", b"\n")
