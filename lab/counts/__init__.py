"""Position frequency: how often training saw every relative position."""

from lab.counts.position_counts import COUNTED, PositionCounts
from lab.counts.visible_context import targets_by_context, visible_context

__all__ = ["COUNTED", "PositionCounts", "targets_by_context", "visible_context"]
