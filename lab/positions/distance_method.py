"""The base class of distance methods: parameters, and a map from query and key positions to relative positions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge

from lab.positions.regions import Region
from lab.schema import Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Band:
    """A region of the causal mask on which the relative position is q_map(q_pos) - k_map(k_pos).

    Bands that share a key map share the function, so that keys are rotated once for both.
    """

    region: Region
    q_map: Callable[[Tensor], Tensor]
    k_map: Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Distance(Section, ABC):
    """The parameters of a distance method, and its equation as one map and as bands."""

    log_n: Annotated[int, Ge(2)] | None = None
    """Training length L of the log-n factor max(1, ln(q_pos + 1) / ln L) on the logits; left out, no factor."""

    beyond_training: ClassVar[bool] = True
    """Whether the method is for texts longer than training, and may change nothing in training itself."""

    @property
    @abstractmethod
    def method(self) -> str:
        """Name of the method in the config."""

    @abstractmethod
    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Compute the relative positions, in tokens; entries with k_pos > q_pos are unspecified.

        Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
        """

    @property
    @abstractmethod
    def bands(self) -> tuple[Band, ...]:
        """The same map as bands, whose regions partition the causal mask except for hidden pairs."""

    @property
    def constant_factor(self) -> float:
        """Factor on the logits that depends on neither position nor layer."""
        return 1.0

    @property
    def hides_pairs(self) -> bool:
        """Whether a query may not see some of the keys before it, whose relative positions are then nan."""
        return False

    @property
    def is_plain(self) -> bool:
        """Whether this is plain distance."""
        return self.method == "plain"

    def length_faults(self, length: int) -> list[str]:
        """List the parameters' faults at `length` tokens, as lines that begin with the field."""
        return []

    def shows(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Return which causal pairs of positions, which broadcast, are not hidden; None where no pair ever is."""
        if not self.hides_pairs:
            return None
        shown, *more = (band.region.contains(q_pos, k_pos) for band in self.bands)
        for region in more:
            shown = shown | region
        return shown

    @property
    def scales_logits(self) -> bool:
        """Whether `logit_factor` can differ from one."""
        return self.log_n is not None or self.constant_factor != 1.0

    def logit_factor(self, q_pos: Tensor) -> Tensor:
        """Compute the factor on q.k, in addition to the frequency method's, float64 like `q_pos`.

        Source: the log-n factor max(1, ln(q_pos + 1) / ln L) of Su's ReRoPE, docs/sources.md.
        """
        factor = q_pos.double() * 0 + 1
        if self.log_n is not None:
            factor = ((q_pos.double() + 1).log() / math.log(self.log_n)).clamp(min=1.0)
        return factor * float(self.constant_factor)


def identity(positions: Tensor) -> Tensor:
    """Return the positions themselves."""
    return positions


def differences(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Subtract every key position from every query position.

    Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
    """
    return (q_pos[:, None] - k_pos[None, :]).double()
