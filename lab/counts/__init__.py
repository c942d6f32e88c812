"""Position frequency: how often training saw every relative position."""

from lab.counts.position_counts import PositionCounts

__all__ = ["PositionCounts"]
