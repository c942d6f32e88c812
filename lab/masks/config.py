"""The mask section of a run's config: who sees whom inside a training window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from lab.schema import Section


@dataclass(frozen=True, kw_only=True)
class WindowMask(Section):
    """What all masks share."""

    chunks: Annotated[int, Ge(2)] | None = None
    """Chunks each document of a window is cut into at random points; the chunks of all documents are shuffled, in
    order within each document. Left out, documents stay whole."""


@dataclass(frozen=True, kw_only=True)
class Causal(WindowMask):
    """A token sees all before it in its segment: its document's piece, or with mode: concatenated the whole window."""

    method: Literal["causal"] = "causal"


@dataclass(frozen=True, kw_only=True)
class Document(WindowMask):
    """A token sees its own document only (intra-document attention)."""

    method: Literal["document"] = "document"
    ids: Literal["reset", "running"] = "reset"
    """Whether rotary ids begin at 0 in every document or run on through the window."""


@dataclass(frozen=True, kw_only=True)
class Anchor(WindowMask):
    """A token sees its own document and the anchor, a <bos> at place 0 of the window; rotary ids run on."""

    method: Literal["anchor"] = "anchor"


MaskConfig = Annotated[Causal | Document | Anchor, Field(discriminator="method")]
