"""Position skips: ids with gaps, with which a short sample covers the distances of a long one. One method per file."""

from lab.skip.base import mean_distance, run_lengths
from lab.skip.methods import SKIP_METHODS, skip_positions

__all__ = ["SKIP_METHODS", "mean_distance", "run_lengths", "skip_positions"]
