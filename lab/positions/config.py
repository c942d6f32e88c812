"""The position section of a run's config: a frequency method and a distance method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from lab.positions.methods import DISTANCE_METHODS, FREQUENCY_METHODS
from lab.positions.plain import Plain
from lab.positions.rope import Rope
from lab.schema import Section

if TYPE_CHECKING:
    FrequencyConfig = Any
    DistanceConfig = Any
else:  # the tables are the one place that lists the methods
    FrequencyConfig = Union[tuple(module.Config for module in FREQUENCY_METHODS.values())]  # noqa: UP007
    DistanceConfig = Union[tuple(module.Config for module in DISTANCE_METHODS.values())]  # noqa: UP007


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Section):
    """How the model is given its positions; `method` selects, the other keys belong to the method."""

    frequency: Annotated[FrequencyConfig, Field(discriminator="method")] = field(default_factory=Rope)
    """Frequency method: rope, or one that changes the inverse frequencies or scales the logits."""
    distance: Annotated[DistanceConfig, Field(discriminator="method")] = field(default_factory=Plain)
    """Distance method: plain, or one that changes the relative positions."""
