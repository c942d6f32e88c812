"""Position skips: ids with gaps, with which a short sample covers the distances of a long one."""

from lab.skip.methods import SKIP_METHODS, mean_distance, run_lengths, skip_positions

__all__ = ["SKIP_METHODS", "mean_distance", "run_lengths", "skip_positions"]
