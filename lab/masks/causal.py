"""Causal mask: a token sees itself and every earlier token of its row.

    keys 0 1 2
query 0  x . .
      1  x x .
      2  x x x
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lab.masks.window_mask import WindowMask


@dataclass(frozen=True, kw_only=True)
class Causal(WindowMask):
    """A token sees all before it in its segment: its document's piece, or with mode: concatenated the whole window."""

    shuffles: ClassVar[bool] = True
    method: Literal["causal"] = "causal"

    def group(self, documents: Any) -> Any:
        return documents * 0
