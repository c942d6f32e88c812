"""The shape section of a run's config: the target profile of f and the strategy that reaches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

from lab.schema import Length, Positive, Section, Share


@dataclass(frozen=True, kw_only=True)
class Flat(Section):
    """Every distance equally often."""

    method: Literal["flat"] = "flat"
    up_to: Positive | None = None
    """Longest distance of the target, in tokens; left out, all below the window."""


@dataclass(frozen=True, kw_only=True)
class Power(Section):
    """A power of the natural profile: exponent 1 is the natural one, less raises long distances, 0 is flat."""

    method: Literal["power"] = "power"
    exponent: Annotated[float, Ge(0), Le(16)] = 0.5
    """Power of the natural f; above 1 the left skew is stronger."""


@dataclass(frozen=True, kw_only=True)
class Bump(Section):
    """The natural profile with the distances around one value raised: f (1 + height exp(-((i - c) / w)^2 / 2))."""

    method: Literal["bump"] = "bump"
    center_frac: Annotated[float, Gt(0), Le(1)] = 0.75
    """Center of the bump c, as a share of the window."""
    width_frac: Annotated[float, Gt(0), Le(1)] = 0.1
    """Width of the bump w, as a share of the window."""
    height: Annotated[float, Gt(0), Le(1e6)] = 2.0
    """How many times the natural f is added at the center."""


@dataclass(frozen=True, kw_only=True)
class Exact(Section):
    """The natural profile with an extra weight on targets of long visible context: EXACT, arXiv:2605.10544."""

    method: Literal["exact"] = "exact"
    extra: Annotated[float, Gt(0), Le(1e6)] = 0.15
    """Mean extra weight of long targets."""
    exponent: Annotated[float, Ge(0), Le(16)] = 0.5
    """Power of the inverse frequency by which buckets of long targets share the extra weight; 0 is evenly."""
    long_frac: Annotated[float, Gt(0), Lt(1)] = 0.25
    """Visible context from which a bucket is long, as a share of the window."""


@dataclass(frozen=True, kw_only=True)
class Choose(Section):
    """Draw the corpus's own segments by their length, some more often than others."""

    method: Literal["choose"] = "choose"
    max_repeats: Annotated[float, Gt(0), Le(1e6)] = 8.0
    """How many times as often as in the corpus a segment may be drawn, for the same number of tokens."""


@dataclass(frozen=True, kw_only=True)
class Pack(Section):
    """Join documents in the corpus's order (data.order: related makes related ones neighbours), cut as planned."""

    method: Literal["pack"] = "pack"


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
    max_weight: Annotated[float, Ge(1), Le(1e6)] = 8.0
    """Largest loss weight of a target; the mean is 1."""


Target = Annotated[Flat | Power | Bump | Exact, Field(discriminator="method")]
Strategy = Annotated[Choose | Pack | Gaps | Weights, Field(discriminator="method")]


@dataclass(frozen=True, kw_only=True)
class ShapeConfig(Section):
    """The profile that the position frequency, or the supervised one, should have."""

    target: Target = field(default_factory=Power)
    """The target profile."""
    strategy: Strategy = field(default_factory=Choose)
    """How the target is reached."""
    strength: Share = 1.0
    """Share of the target in the planned mixture; the rest is the natural profile."""
    tolerance: Annotated[float, Gt(0), Le(1)] = 0.05
    """Largest accepted total variation between the aim and the plan."""
