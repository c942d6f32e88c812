"""The parameters of a sweep, and the settings that a grid or random draws take from them as wandb's engine does.

A grid is the product of the values, the parameters in the order of their names and the last one varying fastest;
values that are equal count once. A random draw takes, parameter by parameter in the same order, the quantile of the
parameter's distribution at a uniform number between 0 and 1; wandb leaves its generator unseeded, lab.sweep seeds it
by --seed. A quantized distribution (q_...) rounds to the nearest multiple of q.

Source: the package sweeps 0.3.0, grid_search.py, random_search.py, params.py and config/schema.json.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtri

NORMAL, BETA, Q = {"mu": 0.0, "sigma": 1.0}, {"a": 1, "b": 1}, {"q": 1.0}
FORMS: dict[str, tuple[tuple[str, ...], Mapping[str, float]]] = {  # distribution: keys it needs, others' defaults
    "constant": (("value",), {}),
    "categorical": (("values",), {}),
    "categorical_w_probabilities": (("values", "probabilities"), {}),
    "int_uniform": (("min", "max"), {}),
    "uniform": (("min", "max"), {}),
    "q_uniform": (("min", "max"), Q),
    "log_uniform_values": (("min", "max"), {}),
    "q_log_uniform_values": (("min", "max"), Q),
    "inv_log_uniform_values": (("min", "max"), {}),
    "normal": ((), NORMAL),
    "q_normal": ((), NORMAL | Q),
    "log_normal": ((), NORMAL),
    "q_log_normal": ((), NORMAL | Q),
    "beta": ((), BETA),
    "q_beta": ((), BETA | Q),
}
IN_GRIDS = ("constant", "categorical", "int_uniform", "q_uniform")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, of several words where it is nested, its distribution and the distribution's keys."""

    name: tuple[str, ...]
    distribution: str
    keys: Mapping[str, Any]


def grid(parameters: Sequence[Parameter]) -> Iterator[Settings]:
    """Yield every combination of the parameters' values, which are sorted by name."""
    for values in itertools.product(*map(grid_values, parameters)):
        yield nested(parameters, values)


def grid_size(parameter: Parameter) -> float:
    """Count a parameter's values in a grid, equal ones included, without listing them."""
    keys = parameter.keys
    if parameter.distribution == "int_uniform":
        return float(keys["max"] + 1 - keys["min"])
    if parameter.distribution == "q_uniform":
        return float((keys["max"] - keys["min"]) / keys["q"])
    values: Any = keys.get("values", [None])
    return len(values)


def grid_values(parameter: Parameter) -> list[Any]:
    """List the distinct values of a parameter in a grid.

    Example:
        >>> grid_values(Parameter(("a",), "q_uniform", {"min": 0, "max": 1, "q": 0.25}))
        [0, 0.25, 0.5, 0.75]
        >>> grid_values(Parameter(("a",), "categorical", {"values": [3, 3.0, True, "3"]}))
        [3, True, '3']
    """
    keys, values = parameter.keys, parameter.keys.get("values", [parameter.keys.get("value")])
    if parameter.distribution == "int_uniform":
        values = range(keys["min"], keys["max"] + 1)
    elif parameter.distribution == "q_uniform":
        values = np.arange(keys["min"], keys["max"], keys["q"]).tolist()
    return list({json.dumps(value, sort_keys=True, default=str): value for value in map(whole, values)}.values())


def draws(parameters: Sequence[Parameter], count: int, seed: int) -> Iterator[Settings]:
    """Yield settings drawn at random; a smaller count gives the beginning of the same draws."""
    generator = random.Random(seed)
    for _ in range(count):
        yield nested(parameters, [whole(quantile(p.distribution, p.keys, generator.random())) for p in parameters])


def quantile(distribution: str, keys: Mapping[str, Any], x: float) -> Any:
    """Return the value below which a distribution has the probability x.

    Example:
        >>> quantile("q_uniform", {"min": 0, "max": 10, "q": 4}, 0.65)
        8
        >>> quantile("int_uniform", {"min": 3, "max": 5}, 0.4)
        4
    """
    if distribution.startswith("q_"):
        return round(quantile(distribution.removeprefix("q_"), keys, x) / keys["q"]) * keys["q"]
    return QUANTILES[distribution](keys, x)


def place(x: float, n: int) -> int:
    """Return which of n equal parts of the numbers from 0 to 1 holds x."""
    return max(0, math.ceil(x * n) - 1)


def whole(value: Any) -> Any:
    """Write floats without a fraction as whole numbers, also inside lists and sections, as wandb's server does."""
    if isinstance(value, dict):
        return {key: whole(part) for key, part in value.items()}
    if isinstance(value, list):
        return [whole(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def nested(parameters: Sequence[Parameter], values: Sequence[Any]) -> Settings:
    """Put values under their parameters' names.

    Example:
        >>> names = ("a", "b"), ("a", "c"), ("d.e",)
        >>> nested([Parameter(name, "constant", {}) for name in names], [1, 2, 3])
        {'a': {'b': 1, 'c': 2}, 'd.e': 3}
    """
    out: Settings = {}
    for parameter, value in zip(parameters, values, strict=True):
        section = out
        for word in parameter.name[:-1]:
            section = section.setdefault(word, {})
        section[parameter.name[-1]] = value
    return out


def between(low: float, high: float, x: float) -> float:
    """Return the number that lies the share x of the way from one to another."""
    return low + x * (high - low)


def weighted(keys: Mapping[str, Any], x: float) -> Any:
    """Return the value at whose cumulated probability x is reached."""
    ends = list(itertools.accumulate(keys["probabilities"]))
    return keys["values"][min(bisect_right(ends, x), len(ends) - 1)]


def log_uniform(keys: Mapping[str, Any], x: float) -> float:
    """Return the quantile of a number whose logarithm is uniform."""
    return math.exp(between(math.log(keys["min"]), math.log(keys["max"]), x))


def normal(keys: Mapping[str, Any], x: float) -> float:
    """Return the quantile of a normal number."""
    return float(keys["mu"] + keys["sigma"] * ndtri(x))


QUANTILES: dict[str, Callable[[Mapping[str, Any], float], Any]] = {
    "constant": lambda keys, x: keys["value"],
    "categorical": lambda keys, x: keys["values"][place(x, len(keys["values"]))],
    "categorical_w_probabilities": weighted,
    "int_uniform": lambda keys, x: keys["min"] + place(x, keys["max"] - keys["min"] + 1),
    "uniform": lambda keys, x: between(keys["min"], keys["max"], x),
    "log_uniform_values": log_uniform,
    "inv_log_uniform_values": log_uniform,  # the same numbers: its inverse is log-uniform as well
    "normal": normal,
    "log_normal": lambda keys, x: math.exp(normal(keys, x)),
    "beta": lambda keys, x: float(betaincinv(keys["a"], keys["b"], x)),
}
