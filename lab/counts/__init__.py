"""Position frequency: how often training saw every relative position."""

from lab.counts.position_counts import PositionCounts
from lab.counts.reading import Counted, SavedCounts, f_at

__all__ = ["Counted", "PositionCounts", "SavedCounts", "f_at"]
