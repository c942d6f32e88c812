"""Read f at one relative position, and counts that were saved."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lab.counts.position_counts import IntArray
from lab.errors import CheckpointError


class Counted(Protocol):
    """A counter, or a saved one."""

    @property
    def max_len(self) -> int:
        """Longest distance plus one."""
        ...

    def frequency(self) -> IntArray:
        """Return f(i) for 0 <= i < max_len."""
        ...


@dataclass(frozen=True, eq=False)
class SavedCounts:
    """The contents of a counts.npz, or of a file in counts/ of a run folder.

    Shapes: `lengths`, segments of each length, int64 (max_len + 1,); `f` int64 (max_len,).
    """

    lengths: IntArray
    f: IntArray
    tokens: int

    @classmethod
    def read(cls, path: Path) -> SavedCounts:
        """Read a file.

        Raises: CheckpointError.
        """
        try:
            with path.open("rb") as opened, np.load(opened) as file:
                return cls(file["lengths"], file["f"], int(file["tokens"]))
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
            reason = str(error).strip("'\"") or type(error).__name__
            raise CheckpointError(f"{path}: cannot be read ({reason}); restore it") from error

    @property
    def max_len(self) -> int:
        """Longest distance plus one."""
        return len(self.f)

    def frequency(self) -> IntArray:
        """Return f(i) for 0 <= i < max_len."""
        return self.f


def f_at(counts: Counted | None, i: int) -> int | None:
    """Return f(i); None where nothing was counted: without a counter, or where `i` is beyond what it holds.

    Example:
        >>> saved = SavedCounts(np.array([0, 1, 0, 1]), np.array([4, 2, 1]), 4)
        >>> f_at(saved, 1), f_at(saved, 3), f_at(None, 1)
        (2, None, None)
    """
    if counts is None or not 0 <= i < counts.max_len:
        return None
    return int(counts.frequency()[i])
