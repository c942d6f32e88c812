"""Attention masks, one per file: groups of documents whose tokens see each other causally."""

from typing import Annotated

from lab.masks.anchor import Anchor
from lab.masks.causal import Causal
from lab.masks.document import Document
from lab.masks.window_mask import WindowMask
from lab.schema import OneOf

__all__ = ["MASKS", "Anchor", "Causal", "Document", "MaskConfig", "WindowMask"]

MASKS: dict[str, type[WindowMask]] = {"causal": Causal, "document": Document, "anchor": Anchor}
MaskConfig = Annotated[WindowMask, OneOf(WindowMask, MASKS)]
