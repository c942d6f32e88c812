"""A parameter of a sweep file in wandb's format: one value, a list of values, a range, or a distribution.

Source: the package sweeps 0.3.0, params.py; wandb's page of sweep configuration keys.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.core.errors import ConfigError
from lab.core.schema import Section

NO_VALUE = object()  # null is a value
LISTS = ("constant", "categorical")
RANGES = ("int_uniform", "uniform", "log_uniform_values")


@dataclass(frozen=True, kw_only=True)
class Parameter(Section):
    """A parameter of a sweep: one value, a list of values, or a range; wandb's `mu`, `sigma` and `q` are rejected."""

    value: Any = NO_VALUE
    """The value of every run."""
    values: tuple[Any, ...] | None = None
    """The values to try."""
    min: float | int | None = None
    """Lower end of a range."""
    max: float | int | None = None
    """Upper end of a range."""
    distribution: str | None = None
    """Distribution of random samples; default: int_uniform if both ends are whole numbers, else uniform."""
    mu: Any = None
    sigma: Any = None
    q: Any = None

    @property
    def shape(self) -> str | None:
        """The distribution of a range, None for value and values."""
        if self.distribution is not None:
            return None if self.distribution in LISTS else self.distribution
        if self.min is None and self.max is None:
            return None
        return "int_uniform" if isinstance(self.min, int) and isinstance(self.max, int) else "uniform"

    def rules(self) -> list[str]:
        """Reject a parameter with no values or several sources of them, an empty range, and keys of no effect."""
        names = (*LISTS, *RANGES)
        if self.distribution not in (None, *names) or (self.mu, self.sigma, self.q) != (None, None, None):
            rule = f"must be one of {', '.join(names)}, without mu, sigma and q"
            return [f"distribution={self.distribution}: {rule}; give values, or run wandb sweep on the file"]
        shape = self.shape
        has_range = self.min is not None or self.max is not None
        if self.distribution in LISTS and has_range:
            return [f"distribution={self.distribution}: takes value or values, not min and max; or use uniform"]
        sources = (self.value is not NO_VALUE) + (self.values is not None) + (shape is not None or has_range)
        if sources != 1 or self.values == ():
            return ["value: goes alone, and so do values, and min and max; give one of them"]
        if shape is None:
            return []
        errors = []
        if self.min is None or self.max is None or self.min >= self.max:
            errors.append(f"min={self.min}: must be < max={self.max}; give both ends of the range")
        elif shape == "log_uniform_values" and self.min <= 0:
            errors.append(f"min={self.min}: must be > 0 for {shape}; raise it")
        elif shape == "int_uniform" and not (isinstance(self.min, int) and isinstance(self.max, int)):
            errors.append(f"min={self.min}: must be a whole number for {shape}, and so must max; or use uniform")
        return errors

    @property
    def choices(self) -> Sequence[Any]:
        """All values; none for real numbers."""
        if self.shape is None:
            return self.values or (self.value,)
        if self.shape == "int_uniform":
            return range(int(self.min or 0), int(self.max or 0) + 1)
        return ()

    def quantile(self, x: float) -> Any:
        """Return the value that a sample is below with the probability x, between 0 and 1.

        Example:
            >>> Parameter(min=3, max=5).quantile(0.4), Parameter(values=("a", "b")).quantile(0.6)
            (4, 'b')
            >>> Parameter(distribution="uniform", min=0, max=1).quantile(0.5)
            0.5
        """
        if self.choices:
            # Each of n values has a share of 1/n: the first up to x = 1/n, and also at x = 0.
            return self.choices[max(0, math.ceil(x * len(self.choices)) - 1)]
        low, high = float(self.min or 0), float(self.max or 0)
        if self.shape == "uniform":
            return low + x * (high - low)
        return math.exp(math.log(low) + x * (math.log(high) - math.log(low)))


def expand_nested(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name the parameters of nested sections by dotted keys, as settings are named.

    Example:
        >>> expand_nested({"optim": {"parameters": {"lr": {"value": 0.1}}}, "run.seed": {"value": 1}})
        {'optim.lr': {'value': 0.1}, 'run.seed': {'value': 1}}

    Raises: ConfigError for a name that is not text, or a parameter that is nested and dotted.
    """
    expanded: dict[str, Any] = {}
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise ConfigError(f"parameters.{prefix}{name}: must be the name of a setting; for instance run.seed")
        nested = value.get("parameters") if isinstance(value, Mapping) and len(value) == 1 else None
        added = {prefix + name: value}
        if isinstance(nested, Mapping):
            added = expand_nested(nested, f"{prefix}{name}.")
        for repeated in sorted(expanded.keys() & added.keys()):
            raise ConfigError(f"parameters.{repeated}: is there twice, nested and dotted; remove one of them")
        expanded |= added
    return expanded
