"""A parameter of a sweep file in wandb's format: one value, a list of values, a range, or a distribution.

Source: the package sweeps 0.3.0, params.py; wandb's page of sweep configuration keys.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from lab.core.schema import Section

NO_VALUE = object()  # null is a value
LISTS = ("constant", "categorical")
NORMAL = ("normal", "log_normal")  # the others are of a range


@dataclass(frozen=True, kw_only=True)
class Parameter(Section):
    """A parameter of a sweep: one value, a list of values, a range, or a distribution of real numbers."""

    value: Any = NO_VALUE
    """The value of every run."""
    values: tuple[Any, ...] | None = None
    """The values to try."""
    min: float | int | None = None
    """Lower end of a range."""
    max: float | int | None = None
    """Upper end of a range."""
    distribution: (
        Literal[
            "constant",
            "categorical",
            "int_uniform",
            "uniform",
            "q_uniform",
            "log_uniform",
            "q_log_uniform",
            "log_uniform_values",
            "q_log_uniform_values",
            "normal",
            "q_normal",
            "log_normal",
            "q_log_normal",
        ]
        | None
    ) = None
    """Distribution of random samples; default: int_uniform if both ends are whole numbers, else uniform.

    min and max are exponents of e for log_uniform, and values for log_uniform_values.
    """
    mu: float = 0.0
    """Mean of a normal distribution, or of the logarithm."""
    sigma: float = 1.0
    """Standard deviation of a normal distribution, or of the logarithm."""
    q: float | int | None = None
    """Step to which samples are rounded for a distribution q_*."""

    @property
    def shape(self) -> str | None:
        """The distribution without the rounding, None for value and values."""
        if self.distribution is not None:
            return None if self.distribution in LISTS else self.distribution.removeprefix("q_")
        if self.min is None and self.max is None:
            return None
        return "int_uniform" if isinstance(self.min, int) and isinstance(self.max, int) else "uniform"

    def rules(self) -> list[str]:
        """Reject a parameter with no values or several sources of them, an empty range, and keys of no effect."""
        shape = self.shape
        has_range = self.min is not None or self.max is not None
        sources = (self.value is not NO_VALUE) + (self.values is not None) + (shape is not None or has_range)
        if sources != 1 or self.values == ():
            return ["value: goes alone, and so do values, and min and max; give one of them"]
        faults = []
        if shape in NORMAL and has_range:
            faults.append(f"distribution={self.distribution}: has mu and sigma, not min and max; remove these")
        if shape not in (*NORMAL, None) and (self.min is None or self.max is None or self.min >= self.max):
            faults.append(f"min={self.min}: must be < max={self.max}; give both ends of the range")
        if shape == "log_uniform_values" and self.min is not None and self.min <= 0:
            faults.append(f"min={self.min}: must be > 0 for {self.distribution}; raise it")
        if shape == "int_uniform" and not (isinstance(self.min, int) and isinstance(self.max, int)):
            faults.append(f"min={self.min}: must be a whole number for int_uniform, and so must max; or use uniform")
        if self.sigma <= 0:
            faults.append(f"sigma={self.sigma}: must be > 0; raise it")
        has_rounding = str(self.distribution).startswith("q_")
        if has_rounding != (self.q is not None) or (self.q is not None and self.q <= 0):
            faults.append(f"q={self.q}: must be > 0 with a distribution q_*, and only there; for instance q: 1")
        return faults

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
            return self.choices[max(0, math.ceil(x * len(self.choices)) - 1)]
        shape = str(self.shape)
        if shape in NORMAL:
            value = NormalDist(self.mu, self.sigma).inv_cdf(x or math.ulp(0.0))  # which 0 has not
        else:
            low, high = float(self.min or 0), float(self.max or 0)
            if shape == "log_uniform_values":
                low, high = math.log(low), math.log(high)
            value = low + x * (high - low)
        if shape.startswith("log_"):
            value = math.exp(value)
        return value if self.q is None else round(value / self.q) * self.q


def expand_nested(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name the parameters of nested sections by dotted keys, as settings are named.

    Example:
        >>> expand_nested({"optim": {"parameters": {"lr": {"value": 0.1}}}, "run.seed": {"value": 1}})
        {'optim.lr': {'value': 0.1}, 'run.seed': {'value': 1}}
    """
    expanded: dict[str, Any] = {}
    for name, value in parameters.items():
        nested = value.get("parameters") if isinstance(value, Mapping) and len(value) == 1 else None
        if isinstance(nested, Mapping):
            expanded |= expand_nested(nested, f"{prefix}{name}.")
        else:
            expanded[prefix + name] = value
    return expanded
