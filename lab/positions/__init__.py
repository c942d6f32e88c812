"""Ways of giving a model its positions: frequency methods and distance methods, one per file.

Nothing here loads torch until a tensor is asked for, so that the parameters can be checked before torch loads.
"""

from __future__ import annotations

from lab.positions import plain, rope
from lab.positions.base import Distance, Frequencies

FREQUENCY_METHODS = {"rope": rope}
DISTANCE_METHODS = {"plain": plain}


__all__ = ["DISTANCE_METHODS", "FREQUENCY_METHODS", "Distance", "Frequencies", "distance", "frequencies"]


def frequencies(method: str, *, head_dim: int, theta: float = 10000.0, **parameters: float) -> Frequencies:
    """Build a frequency method by name; the parameters are those of its config class.

    Raises: ConfigError for an unknown method, an odd `head_dim` or a parameter out of the paper's range.
    """
    return Frequencies.build(FREQUENCY_METHODS, method, head_dim, theta, parameters)


def distance(method: str, **parameters: float) -> Distance:
    """Build a distance method by name; the parameters are those of its config class.

    Raises: ConfigError for an unknown method or a parameter out of the paper's range.
    """
    return Distance.build(DISTANCE_METHODS, method, parameters)
