"""Position frequency: how often training saw every relative position."""

from lab.counts.position_counts import COUNTED, PositionCounts
from lab.counts.reading import Counted, SavedCounts, f_at
from lab.counts.visible_context import targets_by_context, visible_context

__all__ = ["COUNTED", "Counted", "PositionCounts", "SavedCounts", "f_at", "targets_by_context", "visible_context"]
