"""The position section of a run's config: a frequency method and a distance method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from lab.positions.methods import DISTANCE_METHODS, FREQUENCY_METHODS
from lab.positions.plain import Plain
from lab.positions.rope import Rope
from lab.schema import Section

if TYPE_CHECKING:
    from lab.positions.distance_method import Distance as AnyDistance
    from lab.positions.frequency_method import FrequencyMethod as AnyFrequency
else:  # the tables are the one place that lists the methods
    AnyFrequency = Union[tuple(FREQUENCY_METHODS.values())]  # noqa: UP007
    AnyDistance = Union[tuple(DISTANCE_METHODS.values())]  # noqa: UP007


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Section):
    """How the model encodes positions; `method` selects, the other keys belong to the method."""

    frequency: Annotated[AnyFrequency, Field(discriminator="method")] = field(default_factory=Rope)
    """Frequency method: rope, or one that changes the inverse frequencies or scales the logits."""
    distance: Annotated[AnyDistance, Field(discriminator="method")] = field(default_factory=Plain)
    """Distance method: plain, or one that changes the relative positions."""


@dataclass(frozen=True, kw_only=True)
class Replaced(Section):
    """Settings of a Hugging Face folder."""

    position: PositionConfig = field(default_factory=PositionConfig)
    """Position methods in place of the folder's own."""
