"""Position skips: ids with gaps, with which a short sample covers the distances of a long one. One method per file."""

from lab.skip.base import Skip
from lab.skip.methods import SKIP_METHODS, skip_positions, skip_positions_from_config
from lab.skip.sentences import sentence_ends, split_sentences
from lab.skip.statistics import mean_distance, run_lengths

__all__ = [
    "SKIP_METHODS",
    "Skip",
    "mean_distance",
    "run_lengths",
    "sentence_ends",
    "skip_positions",
    "skip_positions_from_config",
    "split_sentences",
]
