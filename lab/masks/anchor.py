"""Anchor mask: causal, inside one document, and document 0 is the anchor that every later token sees.

    documents 0 1 1 2
        keys  0 1 2 3
    query 0   x . . .
          1   x x . .
          2   x x x .
          3   x . . x

Source: AnchorAttention, arXiv:2411.13476, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lab.masks.window_mask import WindowMask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Anchor(WindowMask):
    """A token sees its own document and the anchor, a <bos> as token 0 of the window; ids continue across documents."""

    shuffles: ClassVar[bool] = True
    method: Literal["anchor"] = "anchor"

    @property
    def running(self) -> bool:
        return True

    def group(self, documents: Any) -> Any:
        """Each document is a group, besides which all see the anchor."""
        return documents

    def visible(self, q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        return (k_index <= q_index) & ((k_doc == q_doc) | (k_doc == 0))
