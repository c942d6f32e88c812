"""The shape section of a run's config: the target profile of f and the strategy that reaches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from lab.schema import Length, Section

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


@dataclass(frozen=True, kw_only=True)
class Gaps(Section):
    """Assign ids with gaps to the tokens of full windows, in chunks placed as planned."""

    method: Literal["skip"] = "skip"
    target_len: Length
    """Target window T in tokens, which all ids stay below."""


@dataclass(frozen=True, kw_only=True)
class Weights(Section):
    """Weight the loss of every target by the earlier tokens it sees; the draws do not change."""

    method: Literal["weights"] = "weights"


Target = Annotated[Power | Exact, Field(discriminator="method")]
Strategy = Annotated[Gaps | Weights, Field(discriminator="method")]


@dataclass(frozen=True, kw_only=True)
class ShapeConfig(Section):
    """The profile that the position frequency, or the supervised one, should have."""

    target: Target = field(default_factory=Power)
    """The target profile."""
    strategy: Strategy = field(default_factory=Weights)
    """How the target is reached."""
