"""Results on disk, added as whole lines, so that a crash loses no finished one and the next call goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import ConfigError
from lab.runs.folder import RunFolder

Row = dict[str, Any]


class Appended:
    """The rows of one .jsonl file: those that are there, and those that are added.

    Opening it cuts off a last line without its end, which a crash in the middle of writing leaves.

    Raises: CheckpointError for another broken line; ConfigError where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with written_to(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                content = path.read_bytes()
                os.truncate(path, content.rfind(b"\n") + 1)
            self.rows: list[Row] = list(RunFolder(path.parent).read(path.name))

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; they are on the disk when this returns."""
        new = [dict(row) for row in rows]
        with written_to(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in new))
            file.flush()
            os.fsync(file.fileno())
        self.rows += new


class StartedCell(Appended):
    """The finished tests of a cell that is not finished, in NAME.jsonl.part until NAME.jsonl has all of them."""

    def __init__(self, whole: Path) -> None:
        super().__init__(self.part(whole))

    @staticmethod
    def part(whole: Path) -> Path:
        """Name the file."""
        return whole.with_name(f"{whole.name}.part")

    @property
    def known(self) -> dict[int, Row]:
        """The finished tests by number."""
        return {row["test"]: row for row in self.rows}


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Say in one line why a folder of results cannot be written.

    Raises: ConfigError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"-o {folder}: cannot be written ({reason}); name another folder") from error
