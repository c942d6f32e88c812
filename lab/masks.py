"""Attention masks: groups of documents whose tokens see each other causally, and the order of training windows.

Groups are also the predicate on pairs of tokens; `lab.testing.check_mask` compares both with what training arranges.

Causal mask: a token sees itself and every earlier token of its row.

    keys 0 1 2
query 0  x . .
      1  x x .
      2  x x x

Document mask: causal, and only inside one document (intra-document attention).

documents 0 0 1
    keys  0 1 2
query 0   x . .
      1   x x .
      2   . . x

Source: arXiv:2411.13476, section 2, which compares ids that continue through the window with ids reset per document.

Anchor mask: causal, inside one document, and document 0 is the anchor that every later token sees.

    documents 0 1 1 2
        keys  0 1 2 3
    query 0   x . . .
          1   x x . .
          2   x x x .
          3   x . . x

Source: AnchorAttention, arXiv:2411.13476, section 3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from lab.core.schema import Method, OneOf

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class WindowMask(Method):
    """The settings that all masks share."""

    shuffles: ClassVar[bool] = False
    """Whether `chunks` goes with the mask."""

    chunks: Annotated[int, Ge(2)] | None = None
    """Chunks each document of a window is cut into at random points; the chunks of all documents are shuffled, in
    order within each document. Default: documents stay whole."""

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject windows of one document, ids with gaps, and contexts that are known before any mask but document."""
        if self.method == "causal" and self.chunks is None:
            return
        name = "mask.chunks" if self.method == "causal" else "mask.method"
        # The document mask alone leaves contexts as the data has them.
        is_known = self.method == "document" and self.chunks is None
        other = None
        if run.skip is not None:
            other = "skip.method"
        if run.data.schedule is not None and not is_known:
            other = "data.schedule.start"
        if other is not None:
            yield run.fault(name, f"does not go with {other}; leave one of them out")
        if run.data.mode != "concatenated":
            yield run.fault(name, "needs windows of several documents; set data.mode: concatenated")
        if not is_known:
            yield from run.order_faults("mask.method" if self.chunks is None else "mask.chunks")

    @property
    def is_anchored(self) -> bool:
        """Whether token 0 of the window is an anchor, an additional token before those of the documents."""
        return self.method == "anchor"

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


@dataclass(frozen=True, kw_only=True)
class Causal(WindowMask):
    """A token sees all before it in its segment: its document's piece, or with mode: concatenated the whole window."""

    shuffles: ClassVar[bool] = True
    method: Literal["causal"] = "causal"

    def group(self, documents: Any) -> Any:
        return documents * 0


@dataclass(frozen=True, kw_only=True)
class Document(WindowMask):
    """A token sees its own document only (intra-document attention)."""

    shuffles: ClassVar[bool] = True
    method: Literal["document"] = "document"
    ids: Literal["reset", "running"] = "reset"
    """Whether rotary ids begin at 0 in every document or continue through the window."""

    def group(self, documents: Any) -> Any:
        return documents


@dataclass(frozen=True, kw_only=True)
class Anchor(WindowMask):
    """A token sees its own document and the anchor, a <bos> as token 0 of the window; ids continue across documents."""

    shuffles: ClassVar[bool] = True
    method: Literal["anchor"] = "anchor"

    @property
    def running(self) -> bool:
        return True

    def group(self, documents: Any) -> Any:
        """Each document is a group; all groups also see the anchor."""
        return documents

    def visible(self, q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        return (k_index <= q_index) & ((k_doc == q_doc) | (k_doc == 0))


MASKS: dict[str, type[WindowMask]] = {"causal": Causal, "document": Document, "anchor": Anchor}
MaskConfig = Annotated[WindowMask, OneOf(WindowMask, MASKS)]
