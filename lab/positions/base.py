"""What a frequency method and a distance method are to the rest of the lab: two small values made from a config."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lab.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Inverse frequencies of the rotary pairs, and the factor on the logits.

    Shapes: `inv_freq` float64 (head_dim / 2,), in radians per token.
    """

    method: str
    inv_freq: Tensor
    config: Any
    module: ModuleType

    @classmethod
    def build(
        cls, methods: Mapping[str, ModuleType], method: str, head_dim: int, theta: float, parameters: Mapping[str, Any]
    ) -> Frequencies:
        """Check the parameters and compute the inverse frequencies.

        Raises: ConfigError.
        """
        if head_dim < 2 or head_dim % 2:
            raise ConfigError(f"head_dim={head_dim}: must be even and >= 2 (rotary pairs); change d_model or n_heads")
        if not theta > 0:
            raise ConfigError(f"theta={theta}: must be > 0")
        module = look_up(methods, method, "frequency.method")
        config = configure(module.Config, parameters)
        return cls(method, module.inv_freq(config, head_dim, theta), config, module)

    @property
    def scales_logits(self) -> bool:
        """Whether `logit_factor` can differ from one."""
        return hasattr(self.module, "logit_factor")

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


def look_up(methods: Mapping[str, ModuleType], method: str, field: str) -> ModuleType:
    """Find a method by name or say which names there are."""
    if method not in methods:
        near = difflib.get_close_matches(method, methods, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(methods)}"
        raise ConfigError(f"{field}={method}: unknown method; {hint}")
    return methods[method]


def configure(config_class: type[Any], parameters: Mapping[str, Any]) -> Any:
    """Build a method's config, naming a parameter it does not have."""
    known = [f.name for f in fields(config_class) if f.name != "method"]
    unknown = [name for name in parameters if name not in known]
    if unknown:
        rule = f"takes only {', '.join(known)}" if known else "takes no parameters"
        raise ConfigError(
            *(f"{name}={parameters[name]}: unknown parameter; {config_class.__name__} {rule}" for name in unknown)
        )
    return config_class(**parameters)
