"""Attention masks, one per file: a predicate on (query index, key index, query document, key document)."""

from typing import Annotated

from pydantic import Field

from lab.masks.anchor import Anchor
from lab.masks.causal import Causal
from lab.masks.document import Document
from lab.masks.window_mask import WindowMask

__all__ = ["MASKS", "Anchor", "Causal", "Document", "MaskConfig", "WindowMask"]

MASKS: dict[str, type[WindowMask]] = {"causal": Causal, "document": Document, "anchor": Anchor}
MaskConfig = Annotated[Causal | Document | Anchor, Field(discriminator="method")]
