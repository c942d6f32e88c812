"""The mask section of a run's config: who sees whom inside a training window."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lab.masks.anchor import Anchor
from lab.masks.causal import Causal
from lab.masks.document import Document

MaskConfig = Annotated[Causal | Document | Anchor, Field(discriminator="method")]
