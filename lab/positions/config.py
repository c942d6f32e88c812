"""The position section of a run's config: a frequency method and a distance method."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.positions.plain import Plain
from lab.positions.rope import Rope
from lab.schema import Section


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Section):
    """How the model is given its positions; `method` selects, the other keys belong to the method."""

    frequency: Rope = field(default_factory=Rope)
    """Frequency method: rope."""
    distance: Plain = field(default_factory=Plain)
    """Distance method: plain."""
