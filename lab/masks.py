"""Attention masks: groups of documents whose tokens see each other causally, and windows arranged for them.

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

Arrangement of a training window: its documents as causal runs with rotary ids, targets and an anchor.

    window      a a a b b b b        documents of a window, in tokens
    causal      one run, ids 0 1 2 3 4 5 6
    document    runs a a a, b b b b; ids 0 1 2 0 1 2 3 (reset) or 0 1 2 3 4 5 6 (running)
    anchor      runs A, a a a, b b b b; ids 0, 1 2 3, 4 5 6 7; every run sees A too
    another     a run for each group of documents, ids from 0 in each, or running

With chunks, documents are cut at random points and the chunks shuffled, while those of a document keep their order. A
document that sees only itself is then reassembled, with the ids of its tokens in the shuffled window: attention depends
on ids and visibility, not on the order of a row. No target crosses a document.

Source: arXiv:2411.13476, sections 3 and 5.2, Figures 2 and 5. The released code cuts chunks from the start of the pack,
repeating tokens, and scores targets across documents; here every token occurs once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from annotated_types import Ge

from lab.core.schema import Method, OneOf
from lab.core.types import IGNORE, IntArray

if TYPE_CHECKING:
    from torch import Tensor

Numbers = TypeVar("Numbers", IntArray, "Tensor")  # of documents


class WindowMask(Method):
    """The settings that all masks share."""

    shuffles: ClassVar[bool] = False
    """Whether `chunks` goes with the mask."""

    chunks: Annotated[int, Ge(2)] | None = None
    """Chunks each document of a window is cut into at random points; the chunks of all documents are shuffled, in
    order within each document. Default: documents stay whole."""

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject windows of one document, and ids with gaps."""
        if self.method == "causal":
            return
        if run.skip is not None:
            yield run.format_error("mask.method", "does not go with skip.method; leave one of them out")
        if run.data.mode != "concatenated":
            yield run.format_error("mask.method", "needs windows of several documents; set data.mode: concatenated")

    @property
    def is_anchored(self) -> bool:
        """Whether token 0 of the window is an anchor, an additional token before those of the documents."""
        return self.method == "anchor"

    @property
    def running(self) -> bool:
        """Whether ids continue across the documents of a window."""
        return self.is_anchored or getattr(self, "ids", "reset") == "running"

    @abstractmethod
    def group(self, documents: Numbers) -> Numbers:
        """Number the group of each document of a window; a token sees itself and the earlier tokens of its group.

        Shapes: numbers of documents, from 0 in each window, in a tensor or NumPy array of any shape -> the same shape.
        """

    def visible(self, q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        """Return whether the query sees the key; all arguments broadcast to the shape of the mask."""
        return (k_index <= q_index) & (self.group(q_doc) == self.group(k_doc))

    def rules(self) -> list[str]:
        if self.chunks is None or self.shuffles:
            return []
        return [self.format_error("chunks", f"does not go with method: {self.method}; omit it, or use another mask")]


class Causal(WindowMask):
    """A token sees all before it in its segment: its document's piece, or with mode: concatenated the whole window."""

    method: Literal["causal"] = "causal"

    def group(self, documents: Numbers) -> Numbers:
        return documents * 0


class Document(WindowMask):
    """A token sees its own document only (intra-document attention)."""

    shuffles: ClassVar[bool] = True
    method: Literal["document"] = "document"
    ids: Literal["reset", "running"] = "reset"
    """Whether rotary ids begin at 0 in every document or continue through the window."""

    def group(self, documents: Numbers) -> Numbers:
        return documents


class Anchor(WindowMask):
    """A token sees its own document and the anchor, a <bos> as token 0 of the window; ids continue across documents."""

    shuffles: ClassVar[bool] = True
    method: Literal["anchor"] = "anchor"

    def group(self, documents: Numbers) -> Numbers:
        """Each document is a group; all groups also see the anchor."""
        return documents

    def visible(self, q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        return (k_index <= q_index) & ((k_doc == q_doc) | (k_doc == 0))


MASKS: dict[str, type[WindowMask]] = {"causal": Causal, "document": Document, "anchor": Anchor}
MaskConfig = Annotated[WindowMask, OneOf(WindowMask, MASKS)]


@dataclass(frozen=True, eq=False)
class TokenRun:
    """Tokens that see each other causally in this order.

    Shapes: `tokens`, `targets` and `ids` int64 (n,). `anchored` runs also see the window's anchor, its first run.
    `matched` is false if no sentence of the window contains an impactful token.
    """

    tokens: IntArray
    targets: IntArray
    ids: IntArray
    anchored: bool = False
    matched: bool = True


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How windows are arranged: the mask, and for an anchor mask its token, which replaces the token `bos`."""

    mask: WindowMask = field(default_factory=Causal)
    anchor: int | None = None
    bos: int | None = None

    def runs(
        self,
        tokens: IntArray,
        targets: IntArray,
        documents: IntArray,
        generator: np.random.Generator,
    ) -> list[TokenRun]:
        """Arrange a window.

        Shapes: `tokens`, `targets` (the next token, or IGNORE) and `documents` (numbers from 0, rising) int64 (n,).
        """
        mask = self.mask
        runs: list[TokenRun] = []
        if mask.is_anchored:
            runs.append(TokenRun(np.array([self.anchor]), np.array([IGNORE]), np.array([0])))
            # the anchor replaces the <bos> of each document
            others = np.flatnonzero((tokens != self.bos) | (np.diff(documents, prepend=-1) == 0))
            tokens, targets, documents = tokens[others], targets[others], documents[others]
        if not len(tokens):
            return runs  # the window was one <bos>
        ids = np.arange(len(tokens), dtype=np.int64)
        if mask.chunks is not None:
            order = interleave_chunks(documents, mask.chunks, generator)
            # the row keeps its order, and a token takes the id of its index in the shuffled window
            ids[order] = ids.copy()
        if mask.method == "causal":
            return [TokenRun(tokens, targets, ids)]  # the usual window, at 2x the speed of what follows
        groups = np.asarray(mask.group(documents))
        order = np.argsort(groups, kind="stable")
        tokens, targets, groups = tokens[order], targets[order], groups[order]
        if mask.running:
            ids = ids[order]
        begins = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
        for begin, end in pairwise([*begins, len(ids)]):
            run_ids = ids[begin:end]
            if mask.is_anchored:
                run_ids = run_ids + 1  # the anchor has id 0
            elif not mask.running:
                run_ids = run_ids - run_ids[0]
            runs.append(TokenRun(tokens[begin:end], targets[begin:end], run_ids, mask.is_anchored))
        return runs


def interleave_chunks(documents: IntArray, chunks: int, generator: np.random.Generator) -> IntArray:
    """Cut each document at random points into `chunks` chunks and shuffle them; chunks of a document keep their order.

    A document of fewer tokens than chunks is cut between all its tokens.

    Shapes: documents (n,), rising; returns the new order, a permutation of 0 .. n - 1.
    """
    begins = np.flatnonzero(np.diff(documents, prepend=-1))
    pieces: list[Iterator[IntArray]] = []
    n_pieces = []
    for indices in np.split(np.arange(len(documents)), begins[1:]):
        cuts = generator.choice(len(indices) - 1, size=min(chunks, len(indices)) - 1, replace=False) + 1
        pieces.append(iter(np.split(indices, np.sort(cuts))))
        n_pieces.append(len(cuts) + 1)
    # shuffling the documents' numbers in place of the chunks keeps the order within a document
    owners = np.repeat(np.arange(len(pieces)), n_pieces)
    generator.shuffle(owners)
    return np.concatenate([next(pieces[owner]) for owner in owners])
