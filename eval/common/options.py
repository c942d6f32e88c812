"""Options that several evaluations have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.schema import PathText, Section, Seed, Tests


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """Options of measurements on texts."""

    texts: Tests = 10
    """Texts, pieces of the source that do not overlap."""
    text: PathText | None = None
    """Source of the texts, a .txt, .json or .jsonl file; left out, a run's corpus: held-out documents, fresh filler."""
    text_field: str = "text"
    """Field of the rows of a .json or .jsonl file that holds the text."""
    seed: Seed = 0
    """Seed of the choice of texts, and of what else is drawn."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class CellOptions(Section):
    """Options of measurements that are made of cells."""

    seed: Seed = 0
    """Seed of all that is drawn."""
    batch: Tests | None = None
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
