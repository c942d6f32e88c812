"""Read f at one relative position."""

from __future__ import annotations

from lab.counts.position_counts import PositionCounts


def f_at(counts: PositionCounts | None, i: int) -> int | None:
    """Return f(i); None where nothing was counted: without a counter, or where `i` is beyond what it holds.

    Example:
        >>> counts = PositionCounts(4)
        >>> counts.add_segments([3, 1])
        >>> f_at(counts, 1), f_at(counts, 3), f_at(counts, 4), f_at(None, 1)
        (2, 0, None, None)
    """
    if counts is None or not 0 <= i < counts.max_len:
        return None
    return int(counts.frequency()[i])
