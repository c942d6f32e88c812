"""Position frequency: how often training saw every relative position."""

from lab.counts.position_counts import COUNTED, PositionCounts
from lab.counts.rows import targets_by_context, visible_context
from lab.counts.saved import Counted, SavedCounts, f_at

__all__ = ["COUNTED", "Counted", "PositionCounts", "SavedCounts", "f_at", "targets_by_context", "visible_context"]
