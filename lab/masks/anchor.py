"""Anchor mask: causal, inside one document, and document 0 is the anchor that every later token sees.

    documents 0 1 1 2
        keys  0 1 2 3
    query 0   x . . .
          1   x x . .
          2   x x x .
          3   x . . x

Source: papers/anchor_attention.txt section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def visible(q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
    """Tell whether the query sees the key; all arguments broadcast to the shape of the mask."""
    return (k_index <= q_index) & ((k_doc == q_doc) | (k_doc == 0))
