"""Ways of giving a model its positions: frequency methods and distance methods, one per file.

Nothing here loads torch until a tensor is asked for, so that the parameters can be checked before torch loads.
"""

from lab.positions.base import Band, Distance, DistanceConfig, Frequencies
from lab.positions.methods import DISTANCE_METHODS, FREQUENCY_METHODS, distance, frequencies

__all__ = [
    "DISTANCE_METHODS",
    "FREQUENCY_METHODS",
    "Band",
    "Distance",
    "DistanceConfig",
    "Frequencies",
    "distance",
    "frequencies",
]
