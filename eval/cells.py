"""Finished cells of a measurement on disk, so that a second call goes on where the first one stopped.

A cell is one number of a table: one context length, one depth at one length. Its row in the .jsonl file says what was
measured, on what and with what, and is added as one whole line as soon as the number is known. Rows that agree in what
they are named by are the same measurement.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lab.errors import ConfigError
from lab.runs.folder import RunFolder
from lab.schema import NonNegative, Positive, Section

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CellOptions(Section):
    """Options of every measurement that is made of cells."""

    seed: NonNegative = 0
    """Seed of all that is drawn."""
    batch: Positive | None = None
    """Rows that the model runs side by side; left out, as many as have 16384 tokens together, 64 at most."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rows(self, length: int) -> int:
        """Choose how many rows of a length run side by side.

        Example:
            >>> CellOptions().rows(128), CellOptions().rows(8192), CellOptions(batch=3).rows(128)
            (64, 2, 3)
        """
        return self.batch or max(1, min(64, 16_384 // length))


class Cells:
    """The rows of one file, by what they are named by."""

    def __init__(self, path: Path, named_by: Sequence[str]) -> None:
        """Read what is there; a last line that a crash cut short is taken away.

        Raises: LabError where the file is broken or cannot be written.
        """
        self.path, self.named_by = path, tuple(named_by)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = list(RunFolder(path.parent).read(path.name))
            if path.exists() and not path.read_bytes().endswith(b"\n"):
                RunFolder(path.parent).write_records(path.name, rows)
        except OSError as error:
            raise self.unwritable(error) from error
        self.known = {self.name(row): row for row in rows}

    def __iter__(self) -> Iterator[Row]:
        """Go through all rows, the newest of each name."""
        return iter(self.known.values())

    def name(self, row: Mapping[str, Any]) -> str:
        """Write down what a row is named by."""
        return json.dumps([row.get(key) for key in self.named_by])

    def digest(self, row: Mapping[str, Any]) -> str:
        """Shorten a row's name for file names."""
        return hashlib.sha256(self.name(row).encode()).hexdigest()[:8]

    def find(self, row: Mapping[str, Any]) -> Row | None:
        """Give the finished row of the same name."""
        return self.known.get(self.name(row))

    def add(self, row: Mapping[str, Any], tests: tuple[str, Sequence[Row]] | None = None) -> Row:
        """Add a row, on the disk when this returns; `tests`, a file name and records, are written before it.

        Raises: ConfigError where a file cannot be written.
        """
        whole = dict(row)
        try:
            if tests is not None:
                RunFolder(self.path.parent).write_records(*tests)
                whole["cases"] = tests[0]
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(whole) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self.unwritable(error) from error
        self.known[self.name(whole)] = whole
        return whole

    def unwritable(self, error: OSError) -> ConfigError:
        """Say why results cannot be written."""
        reason = error.strerror or type(error).__name__
        return ConfigError(f"-o {self.path.parent}: cannot be written ({reason}); name another folder")
