"""Weights by visible context, which aim the supervised f at a profile; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from lab.schema import Section

Exponent = Annotated[float, Ge(0), Le(16)]


@dataclass(frozen=True, kw_only=True)
class Power(Section):
    """A power of the natural profile: exponent 1 is the natural one, less raises long distances, 0 is flat."""

    method: Literal["power"] = "power"
    exponent: Exponent = 0.5
    """Power of the natural f; above 1 the left skew is stronger."""


@dataclass(frozen=True, kw_only=True)
class Exact(Section):
    """The natural profile with an extra weight on targets of long visible context: EXACT, arXiv:2605.10544."""

    method: Literal["exact"] = "exact"
    exponent: Exponent = 0.5
    """Power of the inverse frequency by which buckets of long targets share the extra weight; 0 is evenly."""


Target = Annotated[Power | Exact, Field(discriminator="method")]


@dataclass(frozen=True, kw_only=True)
class ByContext(Section):
    """A loss weight of every target by the earlier tokens it sees, so that the supervised f has a profile."""

    by: Literal["context"] = "context"
    target: Target = field(default_factory=Power)
    """The target profile of the supervised f."""
