"""Self-Extend: near tokens keep their distance, and far tokens share positions in groups.

    rel_pos(m, n) = i                                               for i < w       with i = m - n, in tokens
                    floor(m / G) - floor(n / G) + w - floor(w / G)  for i >= w

G is the group and w the neighbour window. With G = 2 and w = 4 the last of 9 tokens sees

    plain        8 7 6 5 4 3 2 1 0
    Self-Extend  6 6 5 5 4 3 2 1 0

Source: Jin et al. 2024, arXiv:2401.01325; a baseline of arXiv:2410.18745 and arXiv:2402.17463. floor(w / G) and w / G
differ where G does not divide w; the floor keeps positions whole.
"""

from dataclasses import dataclass
from typing import Literal

from lab.core.schema import NonNegative, Positive
from lab.positions.method import Band, Distance, Tensor, differences, identity, window_faults
from lab.positions.regions import Far, Near


@dataclass(frozen=True, kw_only=True)
class SelfExtend(Distance):
    """Self-Extend's parameters."""

    method: Literal["self_extend"] = "self_extend"
    group: Positive
    """Group size G in tokens, at least 1; positions are divided by it beyond the window, and 1 is plain distance."""
    window: NonNegative
    """Neighbour window w in tokens, whose distances are kept."""

    def length_faults(self, length: int) -> list[str]:
        return window_faults(self.window, length, "grouped (the neighbour window is part of the text)")

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Keep distances below the window and count groups beyond it: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
        i = differences(q_pos, k_pos)
        grouped = differences(q_pos // self.group, k_pos // self.group) + self.window - self.window // self.group
        return i.where(i < self.window, grouped)

    @property
    def bands(self) -> tuple[Band, ...]:
        """The neighbour window, and the grouped rest."""
        group, offset = self.group, self.window - self.window // self.group
        # The offset is on the queries, so that keys beyond the window are rotated by their group alone.
        return (
            Band(Near(self.window), identity, identity),
            Band(Far(self.window), lambda m: m // group + offset, lambda n: n // group),
        )
