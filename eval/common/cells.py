"""Finished cells of a measurement on disk, so that a second call goes on where the first one stopped.

A cell is one number of a table: one context length, one depth at one length. Its row in the .jsonl file says what was
measured, on what and with what, and is added as one whole line as soon as the number is known; until then the cell's
finished tests lie in a file of their own. Rows that agree in what they are named by are the same measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eval.common.appended import Appended, Row, StartedCell, written_to
from lab.runs.folder import RunFolder
from lab.schema import NonNegative, Positive, Section

__all__ = ["CellOptions", "Cells", "Row"]


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
        """Read what is there.

        Raises: LabError where the file is broken or cannot be written.
        """
        self.path, self.named_by = path, tuple(named_by)
        self.file = Appended(path)
        self.known = {self.name(row): row for row in self.file.rows}

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

    def started(self, tests: str) -> StartedCell:
        """Open what is finished of a cell whose tests will lie in the file `tests`.

        Raises: LabError where the file is broken or cannot be written.
        """
        return StartedCell(self.path.parent / tests)

    def add(self, row: Mapping[str, Any], tests: tuple[str, Sequence[Row]] | None = None) -> Row:
        """Add a row, on the disk when this returns; `tests`, a file name and records, are written before it.

        Raises: ConfigError where a file cannot be written.
        """
        whole = dict(row)
        if tests is not None:
            with written_to(self.path.parent):
                RunFolder(self.path.parent).write_records(*tests)
            whole["cases"] = tests[0]
        self.file.add([whole])
        if tests is not None:
            StartedCell.part(self.path.parent / tests[0]).unlink(missing_ok=True)
        self.known[self.name(whole)] = whole
        return whole
