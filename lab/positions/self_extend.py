"""Methods that compress distances beyond a window: Self-Extend, ReRoPE, leaky ReRoPE.

Self-Extend: near tokens keep their distance, and far tokens share positions in groups.

    rel_pos(m, n) = i                                               for i < w       with i = m - n, in tokens
                    floor(m / G) - floor(n / G) + w - floor(w / G)  for i >= w

G is the group and w the neighbour window. With G = 2 and w = 4 the last of 9 tokens sees

    plain        8 7 6 5 4 3 2 1 0
    Self-Extend  6 6 5 5 4 3 2 1 0

Source: Jin et al. 2024, arXiv:2401.01325; a baseline of arXiv:2410.18745 and arXiv:2402.17463. floor(w / G) and w / G
differ where G does not divide w; the floor keeps positions whole.

ReRoPE: distances are plain up to a window and constant beyond it.

    rel_pos(m, n) = min(i, w)       with i = m - n, in tokens

w is the window. With w = 4 the last of 9 tokens sees 4 4 4 4 4 3 2 1 0.

Source: Su 2023 (docs/methods.md), a baseline of arXiv:2410.18745, section 4. The released ReRoPE always scales queries
by log n; here that is the separate setting `log_n`.

Leaky ReRoPE: beyond the window distances grow `leak` times slower.

    rel_pos(m, n) = i                   for i < w
                    w + (i - w) / k     for i >= w

k is the leak. With w = 4 and k = 2 the last of 9 tokens sees 6 5.5 5 4.5 4 3 2 1 0. A window of 0 is position
interpolation by the factor k; a large k is ReRoPE. Source: the leaky form of ReRoPE, ibid.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Le

from lab.core.schema import NonNegative, Positive
from lab.positions.method import Band, Distance, Tensor, differences, identity
from lab.positions.regions import Far, Near


class SelfExtend(Distance):
    """Self-Extend's parameters."""

    method: Literal["self_extend"] = "self_extend"
    group: Positive
    """Group size G in tokens, at least 1; positions are divided by it beyond the window, and 1 is plain distance."""
    window: NonNegative
    """Neighbour window w in tokens, whose distances are kept."""

    @property
    def longest_plain(self) -> int:
        return self.window + 1

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


class Rerope(Distance):
    """ReRoPE's parameters."""

    method: Literal["rerope"] = "rerope"
    window: NonNegative
    """Window w in tokens, the largest relative position; below the training length."""

    @property
    def longest_plain(self) -> int:
        return self.window + 1

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Clamp every distance at the window: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
        return differences(q_pos, k_pos).clamp(max=self.window)

    @property
    def bands(self) -> tuple[Band, ...]:
        window = self.window
        # Beyond the window every key is at 0 and every query at w, so that all distances are w.
        return (Band(Near(window), identity, identity), Band(Far(window), lambda m: m * 0 + window, lambda n: n * 0))


class LeakyRerope(Distance):
    """Leaky ReRoPE's parameters."""

    method: Literal["leaky_rerope"] = "leaky_rerope"
    window: NonNegative
    """Window w in tokens, whose distances are kept."""
    leak: Annotated[float, Ge(1), Le(1e30)]
    """How many times slower positions grow beyond the window, at least 1; 1 is plain distance."""

    @property
    def longest_plain(self) -> int:
        return self.window + 1

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Divide the part of a distance beyond the window by the leak: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
        i = differences(q_pos, k_pos)
        return i.clamp(max=self.window) + (i - self.window).clamp(min=0) / self.leak

    @property
    def bands(self) -> tuple[Band, ...]:
        """The window of plain distances, and the rest with the positions of queries and keys divided by the leak."""
        window, leak = self.window, self.leak
        return (
            Band(Near(window), identity, identity),
            Band(Far(window), lambda m: window + (m - window).double() / leak, lambda n: n.double() / leak),
        )
