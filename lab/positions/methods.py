"""The tables of methods, and the two functions that build one by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lab.positions import (
    abf,
    dca,
    dynamic_ntk,
    entropy_abf,
    leaky_rerope,
    llama3,
    ntk,
    ntk_by_parts,
    pi,
    plain,
    rerope,
    rope,
    self_extend,
    string,
    yarn,
)
from lab.positions.base import Distance, Frequencies

FREQUENCY_METHODS = {
    "rope": rope,
    "pi": pi,
    "ntk": ntk,
    "dynamic_ntk": dynamic_ntk,
    "ntk_by_parts": ntk_by_parts,
    "yarn": yarn,
    "llama3": llama3,
    "abf": abf,
    "entropy_abf": entropy_abf,
}
DISTANCE_METHODS = {
    "plain": plain,
    "string": string,
    "dca": dca,
    "self_extend": self_extend,
    "rerope": rerope,
    "leaky_rerope": leaky_rerope,
}


def frequencies(method: str, *, head_dim: int, theta: float | None = None, **parameters: float | None) -> Frequencies:
    """Build a frequency method by name; the parameters are those of its config class.

    `theta` left out is 10,000, and 500,000 for the methods that adjust the base.

    Raises: ConfigError for an unknown method, an odd `head_dim` or a parameter out of the paper's range.
    """
    return Frequencies.build(FREQUENCY_METHODS, method, head_dim, theta, parameters)


def distance(method: str, **parameters: float | None) -> Distance:
    """Build a distance method by name; the parameters are those of its config class.

    Raises: ConfigError for an unknown method or a parameter out of the paper's range.
    """
    return Distance.build(DISTANCE_METHODS, method, parameters)


def frequencies_from_config(config: Any, *, head_dim: int, theta: float) -> Frequencies:
    """Build the frequency method of a config section; methods that choose a base of their own take theirs."""
    parameters = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "method"}
    return frequencies(config.method, head_dim=head_dim, **{"theta": theta, **parameters})


def distance_from_config(config: Any) -> Distance:
    """Build the distance method of a config section."""
    return Distance(config.method, config, DISTANCE_METHODS[config.method])


def describe(config: Any) -> str:
    """Name a method with the parameters that are not at their defaults.

    Example:
        >>> describe(string.String(shift=3, window=0)), describe(plain.Plain())
        ('string(shift=3,window=0)', 'plain')
    """
    values = [(f.name, getattr(config, f.name)) for f in fields(config) if getattr(config, f.name) != f.default]
    words = ",".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values)
    return f"{config.method}({words})" if words else str(config.method)
