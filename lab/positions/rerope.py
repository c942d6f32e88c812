"""ReRoPE: distances are plain up to a window and constant beyond it.

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

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from lab.core.schema import NonNegative
from lab.positions.method import Band, Distance, Tensor, differences, identity, window_faults
from lab.positions.regions import Far, Near


@dataclass(frozen=True, kw_only=True)
class Rerope(Distance):
    """ReRoPE's parameters."""

    method: Literal["rerope"] = "rerope"
    window: NonNegative
    """Window w in tokens, the largest relative position; below the training length."""

    def length_faults(self, length: int) -> list[str]:
        return window_faults(self.window, length, "cut (min(i, w) with w inside the training length)")

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Clamp every distance at the window: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
        return differences(q_pos, k_pos).clamp(max=self.window)

    @property
    def bands(self) -> tuple[Band, ...]:
        window = self.window
        # Beyond the window every key is at 0 and every query at w, so that all distances are w.
        return (Band(Near(window), identity, identity), Band(Far(window), lambda m: m * 0 + window, lambda n: n * 0))


@dataclass(frozen=True, kw_only=True)
class LeakyRerope(Distance):
    """Leaky ReRoPE's parameters."""

    method: Literal["leaky_rerope"] = "leaky_rerope"
    window: NonNegative
    """Window w in tokens, whose distances are kept."""
    leak: Annotated[float, Ge(1), Le(1e30)]
    """How many times slower positions grow beyond the window, at least 1; 1 is plain distance."""

    def length_faults(self, length: int) -> list[str]:
        return window_faults(self.window, length, "changed (w lies inside the training length)")

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
