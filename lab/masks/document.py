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
from typing import Any, ClassVar, Literal

from lab.masks.window_mask import WindowMask


@dataclass(frozen=True, kw_only=True)
class Document(WindowMask):
    """A token sees its own document only (intra-document attention)."""

    shuffles: ClassVar[bool] = True
    method: Literal["document"] = "document"
    ids: Literal["reset", "running"] = "reset"
    """Whether rotary ids begin at 0 in every document or continue through the window."""

    def group(self, documents: Any) -> Any:
        return documents
