"""Document mask: causal, and only inside one document (intra-document attention).

documents 0 0 1
    keys  0 1 2
query 0   x . .
      1   x x .
      2   . . x

Source: arXiv:2411.13476, section 2, which compares ids that continue through the window with ids reset per document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.masks.window_mask import WindowMask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Document(WindowMask):
    """A token sees its own document only (intra-document attention)."""

    method: Literal["document"] = "document"
    ids: Literal["reset", "running"] = "reset"
    """Whether rotary ids begin at 0 in every document or continue through the window."""

    @staticmethod
    def visible(q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        """Compare the order in the row and the documents."""
        return (k_index <= q_index) & (k_doc == q_doc)
