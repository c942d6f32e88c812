"""What a frequency method and a distance method are to the rest of the lab: two small values made from a config."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge

from lab.errors import ConfigError
from lab.positions.regions import Region
from lab.schema import Positive, Section, is_whole, look_up

if TYPE_CHECKING:
    from torch import Tensor


Factor = Annotated[float, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class Extension(Section):
    """The parameters of methods that know only by how much a text outgrows training."""

    factor: Factor
    """Factor s = target_len / train_len, at least 1."""
    train_len: Positive | None = None
    """Pretraining length in tokens, which the equation does not need; given, it must be that of the run it extends."""


@dataclass(frozen=True, kw_only=True)
class DistanceConfig(Section):
    """What every distance method has beside its own parameters."""

    log_n: Annotated[int, Ge(2)] | None = None
    """Training length L of the log-n factor max(1, ln(q_pos + 1) / ln L) on the logits; left out, no factor."""

    beyond_training: ClassVar[bool] = True
    """Whether the method is made for texts longer than training, so that it may change nothing in training itself."""

    @property
    def constant_factor(self) -> float:
        """Factor on the logits that depends on neither position nor layer."""
        return 1.0

    @property
    def hides_pairs(self) -> bool:
        """Whether a query may not see some of the keys before it, whose relative positions are then nan."""
        return False

    def length_faults(self, length: int) -> list[str]:
        """List what is wrong with the parameters at `length` tokens, as lines that begin with the field."""
        return []


@dataclass(frozen=True)
class Band:
    """A region of the causal mask on which the relative position is q_map(q_pos) - k_map(k_pos).

    Bands that share a key map share the function, so that keys are rotated once for both.
    """

    region: Region
    q_map: Callable[[Tensor], Tensor]
    k_map: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Inverse frequencies of the rotary pairs, and the factor on the logits.

    Shapes: `inv_freq` float64 (head_dim / 2,), in radians per token.
    """

    method: str
    inv_freq: Tensor
    config: Any
    module: ModuleType
    theta: float

    @classmethod
    def build(
        cls,
        methods: Mapping[str, ModuleType],
        method: str,
        head_dim: int,
        theta: float | None,
        parameters: Mapping[str, Any],
    ) -> Frequencies:
        """Check the parameters and compute the inverse frequencies; `theta` left out is the method's own default.

        Raises: ConfigError.
        """
        module = look_up(methods, method, "frequency.method")
        if "theta" in (f.name for f in fields(module.Config)):  # the method is a choice of theta
            parameters = {**parameters, **({} if theta is None else {"theta": theta})}
            config = configure(module.Config, parameters)
            theta = config.theta
        else:
            config = configure(module.Config, parameters)
            theta = 10000.0 if theta is None else theta
        if not is_whole(head_dim) or head_dim < 2 or head_dim % 2:
            raise ConfigError(f"head_dim={head_dim}: must be even and >= 2 (rotary pairs); change d_model or n_heads")
        number = isinstance(theta, Real) and not isinstance(theta, bool)
        if not number or not (theta > 0 and math.isfinite(theta)):
            raise ConfigError(f"theta={theta}: must be > 0 and finite; the rotary base is 10000 in papers/string.txt")
        return cls(method, module.inv_freq(config, head_dim, theta), config, module, float(theta))

    @property
    def scales_logits(self) -> bool:
        """Whether `logit_factor` can differ from one."""
        return hasattr(self.module, "logit_factor")

    @property
    def is_dynamic(self) -> bool:
        """Whether the inverse frequencies follow the length of the text."""
        return hasattr(self.module, "at_length") and self.config.length is None

    def at_length(self, length: int) -> Frequencies:
        """Give the frequencies for a text of `length` tokens: the same for all methods but a dynamic one."""
        if not self.is_dynamic:
            return self
        config = self.module.at_length(self.config, length)
        inv_freq = self.module.inv_freq(config, 2 * len(self.inv_freq), self.theta)
        return Frequencies(self.method, inv_freq, config, self.module, self.theta)

    def logit_factor(self, q_pos: Tensor, layer: int = 0) -> Tensor:
        """Return what multiplies q.k, float64 (Tq,), for queries at `q_pos` in layer `layer`."""
        if not self.scales_logits:
            return q_pos.double() * 0 + 1
        factor: Tensor = self.module.logit_factor(self.config, q_pos, layer)
        return factor


@dataclass(frozen=True, eq=False)
class Distance:
    """A map from query and key positions to the relative position that attention sees."""

    method: str
    config: Any
    module: ModuleType

    @classmethod
    def build(cls, methods: Mapping[str, ModuleType], method: str, parameters: Mapping[str, Any]) -> Distance:
        """Check the parameters.

        Raises: ConfigError.
        """
        module = look_up(methods, method, "distance.method")
        return cls(method, configure(module.Config, parameters), module)

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Return relative positions, float64 (Tq, Tk); entries with k_pos > q_pos are unspecified."""
        rel: Tensor = self.module.rel_pos(self.config, q_pos, k_pos)
        return rel.double()

    @property
    def bands(self) -> tuple[Band, ...]:
        """The method as bands, each with a map of queries and one of keys.

        Their regions partition the causal mask, but for the pairs that the method hides.
        """
        bands: tuple[Band, ...] = self.module.bands(self.config)
        return bands

    @property
    def is_plain(self) -> bool:
        """Whether the distance is left as it is."""
        return self.method == "plain"

    def shows(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Tell which causal pairs of positions, which broadcast, are not hidden; None where no pair ever is."""
        if not self.config.hides_pairs:
            return None
        shown, *more = (band.region.contains(q_pos, k_pos) for band in self.bands)
        for region in more:
            shown = shown | region
        return shown

    @property
    def scales_logits(self) -> bool:
        """Whether `logit_factor` can differ from one."""
        return self.config.log_n is not None or self.config.constant_factor != 1.0

    def logit_factor(self, q_pos: Tensor) -> Tensor:
        """Return what multiplies q.k beside the frequency method's factor, float64 like `q_pos`.

        Source: the log-n factor max(1, ln(q_pos + 1) / ln L) of methods.md section 4.
        """
        factor = q_pos.double() * 0 + 1
        if self.config.log_n is not None:
            factor = ((q_pos.double() + 1).log() / math.log(self.config.log_n)).clamp(min=1.0)
        return factor * float(self.config.constant_factor)


def identity(positions: Tensor) -> Tensor:
    """Leave positions as they are."""
    return positions


def configure(config_class: type[Any], parameters: Mapping[str, Any]) -> Any:
    """Build a method's config, naming a parameter it does not have and one that is missing."""
    own = [f for f in fields(config_class) if f.name != "method"]
    known = [f.name for f in own]
    unknown = [name for name in parameters if name not in known]
    name = config_class.__name__
    if unknown:
        rule = f"takes only {', '.join(known)}" if known else "takes no parameters"
        raise ConfigError(*(f"{key}={parameters[key]}: unknown parameter; {name} {rule}" for key in unknown))
    missing = [f.name for f in own if f.default is MISSING and f.name not in parameters]
    if missing:
        raise ConfigError(*(f"{key}: must be set; {name} takes {', '.join(known)}" for key in missing))
    return config_class(**parameters)
