"""Causal mask: a token sees itself and every earlier token of its row.

    keys 0 1 2
query 0  x . .
      1  x x .
      2  x x x
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.masks.window_mask import WindowMask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Causal(WindowMask):
    """A token sees all before it in its segment: its document's piece, or with mode: concatenated the whole window."""

    method: Literal["causal"] = "causal"

    @staticmethod
    def visible(q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        """Compare the order in the row."""
        return k_index <= q_index
