"""Position methods, related ones in one file: frequency and distance methods.

torch is imported only when a tensor is needed, so that settings are checked before it loads.
"""

from lab.positions.method import Band, Distance, Frequencies, FrequencyMethod, identity
from lab.positions.methods import DISTANCE_METHODS, FREQUENCY_METHODS, distance, frequencies

__all__ = [
    "DISTANCE_METHODS",
    "FREQUENCY_METHODS",
    "Band",
    "Distance",
    "Frequencies",
    "FrequencyMethod",
    "distance",
    "frequencies",
    "identity",
]
