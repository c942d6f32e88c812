"""Causal mask: a token sees itself and every earlier token of its row.

    keys 0 1 2
query 0  x . .
      1  x x .
      2  x x x
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def visible(q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
    """Tell whether the query sees the key; all arguments broadcast to the shape of the mask."""
    return k_index <= q_index
