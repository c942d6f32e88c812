"""The base class of masks: groups of documents that see each other, and the order of documents in training windows.

Groups are also the predicate on pairs of tokens; `lab.testing.check_mask` compares both with what training arranges.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge

from lab.schema import Method

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class WindowMask(Method):
    """The settings that all masks share."""

    shuffles: ClassVar[bool] = False
    """Whether `chunks` goes with the mask."""

    chunks: Annotated[int, Ge(2)] | None = None
    """Chunks each document of a window is cut into at random points; the chunks of all documents are shuffled, in
    order within each document. Left out, documents stay whole."""

    @property
    def running(self) -> bool:
        """Whether ids continue across the documents of a window."""
        return getattr(self, "ids", "reset") == "running"

    @abstractmethod
    def group(self, documents: Any) -> Any:
        """Number the group of each document of a window; a token sees itself and the earlier tokens of its group.

        Shapes: numbers of documents, from 0 in each window, in a tensor or NumPy array of any shape -> the same shape.
        """

    def visible(self, q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        """Return whether the query sees the key; all arguments broadcast to the shape of the mask."""
        seen: Tensor = (k_index <= q_index) & (self.group(q_doc) == self.group(k_doc))
        return seen

    def rules(self) -> list[str]:
        if self.chunks is None or self.shuffles:
            return []
        return [self.fault("chunks", f"does not go with method: {self.method}; leave it out, or use another mask")]
