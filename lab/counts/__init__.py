"""Position frequency: how often training saw every relative position."""

from lab.counts.position_counts import PositionCounts
from lab.counts.reading import f_at

__all__ = ["PositionCounts", "f_at"]
