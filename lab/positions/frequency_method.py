"""The base class of frequency methods: parameters that determine inverse frequencies and a factor on the logits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from annotated_types import Ge, Le

from lab.errors import ConfigError
from lab.schema import Positive, Section, is_whole

if TYPE_CHECKING:
    from torch import Tensor

Factor = Annotated[float, Ge(1), Le(1e6)]


@dataclass(frozen=True, kw_only=True)
class FrequencyMethod(Section, ABC):
    """The parameters of a frequency method, and its equation."""

    scales_logits: ClassVar[bool] = False
    """Whether `logit_factor` can differ from one."""

    @property
    @abstractmethod
    def method(self) -> str:
        """Name of the method in the config."""

    @abstractmethod
    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute the inverse frequencies at the rotary base `theta`, in radians per token.

        Shapes: float64 (head_dim / 2,).
        """

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Compute the factor on q.k of queries at `q_pos` in layer `layer`; one by default.

        Shapes: float64 like `q_pos`.
        """
        return q_pos.double() * 0 + 1

    def base(self, theta: float) -> float:
        """Return the rotary base in use: the model's `theta` by default."""
        return theta

    @property
    def is_dynamic(self) -> bool:
        """Whether the inverse frequencies depend on the length of the text, which is not fixed."""
        return False

    def at_length(self, length: int) -> Self:
        """Return the method with its text length fixed."""
        return self


@dataclass(frozen=True, kw_only=True)
class Extension(FrequencyMethod):
    """The parameters of methods that depend on the extension factor alone."""

    factor: Factor
    """Factor s = target_len / train_len, at least 1."""
    train_len: Positive | None = None
    """Pretraining length in tokens, which the equation does not use; if set, it must be that of the extended run."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """A frequency method applied to heads of one size.

    Shapes: `inv_freq` float64 (head_dim / 2,), in radians per token.
    """

    config: FrequencyMethod
    theta: float
    inv_freq: Tensor

    @classmethod
    def of(cls, config: FrequencyMethod, head_dim: int, theta: float) -> Frequencies:
        """Compute the inverse frequencies of a method for a model with the rotary base `theta`.

        Raises: ConfigError.
        """
        theta = config.base(theta)
        if not is_whole(head_dim) or head_dim < 2 or head_dim % 2:
            raise ConfigError(f"head_dim={head_dim}: must be even and >= 2 (rotary pairs); change d_model or n_heads")
        number = isinstance(theta, Real) and not isinstance(theta, bool)
        if not number or not (theta > 0 and math.isfinite(theta)):
            raise ConfigError(f"theta={theta}: must be > 0 and finite; use 10000 as in RoPE")
        return cls(config, float(theta), config.inv_freq(head_dim, theta))

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config.method

    @property
    def scales_logits(self) -> bool:
        """Whether `logit_factor` can differ from one."""
        return self.config.scales_logits

    @property
    def is_dynamic(self) -> bool:
        """Whether the inverse frequencies follow the length of the text."""
        return self.config.is_dynamic

    def at_length(self, length: int) -> Frequencies:
        """Return the frequencies for a text of `length` tokens, which differ for a dynamic method alone."""
        if not self.is_dynamic:
            return self
        return Frequencies.of(self.config.at_length(length), 2 * len(self.inv_freq), self.theta)

    def logit_factor(self, q_pos: Tensor, layer: int = 0) -> Tensor:
        """Return the factor on q.k, float64 (Tq,), for queries at `q_pos` in layer `layer`."""
        return self.config.logit_factor(q_pos, layer)
