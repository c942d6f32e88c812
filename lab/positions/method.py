"""The base classes of position methods.

A frequency method has parameters that determine inverse frequencies and a factor on the logits. A distance method has
parameters and a map from query and key positions to relative positions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

from annotated_types import Ge, Le

from lab.core.errors import ConfigError
from lab.core.schema import Method, Positive
from lab.positions.regions import Region

if TYPE_CHECKING:
    import torch

# Methods name the type without importing torch, which takes seconds.
Tensor: TypeAlias = "torch.Tensor"
Factor = Annotated[float, Ge(1), Le(1e6)]


class FrequencyMethod(Method):
    """The parameters of a frequency method, and its equation."""

    scales_logits: ClassVar[bool] = False
    """Whether `logit_factor` can differ from one."""

    @abstractmethod
    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute the inverse frequencies at the rotary base `theta`, in radians per token: float64 (head_dim / 2,)."""

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Compute the factor on q.k of queries at `q_pos` in layer `layer`, float64 like `q_pos`; one by default."""
        return q_pos.double() * 0 + 1

    def base(self, theta: float) -> float:
        """Return the rotary base in use: the model's `theta` by default."""
        return theta


class Extension(FrequencyMethod):
    """The parameters of methods that depend on the extension factor alone."""

    factor: Factor
    """Factor s = target_len / train_len, at least 1."""
    train_len: Positive | None = None
    """Pretraining length in tokens, which the equation does not use; if set, it must be that of the extended run."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """A frequency method at one size of heads; `inv_freq` is float64 (head_dim / 2,), in radians per token."""

    config: FrequencyMethod
    theta: float
    inv_freq: Tensor

    @classmethod
    def of(cls, config: FrequencyMethod, head_dim: int, theta: float) -> Frequencies:
        """Compute the inverse frequencies of a method, rejecting an odd head or a base that is no number above 0."""
        theta = config.base(theta)
        if head_dim < 2 or head_dim % 2:
            raise ConfigError(f"head_dim={head_dim}: must be even and >= 2 (rotary pairs); change d_model or n_heads")
        if not 0 < theta < math.inf:
            raise ConfigError(f"theta={theta}: must be > 0 and finite; use 10000 as in RoPE")
        return cls(config, float(theta), config.inv_freq(head_dim, theta))

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def scales_logits(self) -> bool:
        return self.config.scales_logits

    @property
    def is_dynamic(self) -> bool:
        """Whether the inverse frequencies depend on the length of the text, because no `length` is set."""
        return getattr(self.config, "length", 0) is None

    def at_length(self, length: int) -> Frequencies:
        """Return the frequencies for a text of `length` tokens, which differ for a dynamic method alone."""
        if not self.is_dynamic:
            return self
        # Only the dataclasses of dynamic methods have a field `length`, which the base class's type does not show.
        config = replace(self.config, length=length)  # type: ignore[call-arg]
        return Frequencies.of(config, 2 * len(self.inv_freq), self.theta)

    def logit_factor(self, q_pos: Tensor, layer: int = 0) -> Tensor:
        """Return the factor on q.k, float64 (Tq,), for queries at `q_pos` in layer `layer`."""
        return self.config.logit_factor(q_pos, layer)


@dataclass(frozen=True)
class Band:
    """A region of the causal mask on which the relative position is q_map(q_pos) - k_map(k_pos).

    Bands that share a key map share the function, so that keys are rotated once for both.
    """

    region: Region
    q_map: Callable[[Tensor], Tensor]
    k_map: Callable[[Tensor], Tensor]


class Distance(Method):
    """The parameters of a distance method, and its equation as one map and as bands."""

    log_n: Annotated[int, Ge(2)] | None = None
    """Training length L of the log-n factor max(1, ln(q_pos + 1) / ln L) on the logits. Default: no factor."""

    limit: ClassVar[str] = "window"
    """Name of the parameter that `longest_plain` follows from."""
    beyond_training: ClassVar[bool] = True
    """Whether the method is for texts longer than training, and may change nothing in training itself."""

    @abstractmethod
    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Compute the relative positions, in tokens: float64 (Tq, Tk); entries with k_pos > q_pos are unspecified."""

    @property
    @abstractmethod
    def bands(self) -> tuple[Band, ...]:
        """The same map as bands; their regions partition the causal mask except for hidden pairs."""

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
        return self.method == "plain"

    @property
    def longest_plain(self) -> int:
        """The length in tokens of the longest text in which all distances stay plain, though the method is not."""
        return 0

    def length_errors(self, length: int) -> list[str]:
        """Reject a text in which nothing changes, by a line that begins with the field."""
        if length > self.longest_plain:
            return []
        rule = f"changes nothing in {length} tokens, all distances up to {self.longest_plain} are plain"
        return [self.format_error(self.limit, f"{rule}; lower it or read a longer text")]

    def visible_pairs(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | bool:
        """Return which causal pairs of positions, which broadcast, are not hidden; True where no pair ever is."""
        if not self.hides_pairs:
            return True
        # A hidden pair is in no band.
        visible: Tensor | bool = False
        for band in self.bands:
            visible = visible | band.region.contains(q_pos, k_pos)
        return visible

    @property
    def scales_logits(self) -> bool:
        return self.log_n is not None or self.constant_factor != 1.0

    def logit_factor(self, q_pos: Tensor) -> Tensor:
        """Compute the factor on q.k, in addition to the frequency method's, float64 like `q_pos`.

        Source: the log-n factor max(1, ln(q_pos + 1) / ln L) of Su's ReRoPE, docs/methods.md.
        """
        # Built from `q_pos`, so that it has its device and shape without an import of torch.
        factor = q_pos.double() * 0 + 1
        if self.log_n is not None:
            factor = ((q_pos.double() + 1).log() / math.log(self.log_n)).clamp(min=1.0)
        return factor * self.constant_factor


def identity(positions: Tensor) -> Tensor:
    return positions


def differences(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Subtract every key position from every query position: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
    return (q_pos[:, None] - k_pos[None, :]).double()
