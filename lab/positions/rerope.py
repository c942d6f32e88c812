"""ReRoPE: distances are plain up to a window and constant beyond it.

    rel_pos(m, n) = min(i, w)       with i = m - n, in tokens

w is the window. With w = 4 the last of 9 tokens sees 4 4 4 4 4 3 2 1 0.

Source: Su 2023 (docs/sources.md), a baseline of arXiv:2410.18745, section 4. The released ReRoPE always scales queries
by log n; here that is the separate setting `log_n`.
"""

from dataclasses import dataclass
from typing import Literal

from lab.positions.method import Band, Distance, Tensor, differences, identity, window_faults
from lab.positions.regions import Far, Near
from lab.schema import NonNegative


@dataclass(frozen=True, kw_only=True)
class Rerope(Distance):
    """ReRoPE's parameters."""

    method: Literal["rerope"] = "rerope"
    window: NonNegative
    """Window w in tokens, the largest relative position; below the training length."""

    def length_faults(self, length: int) -> list[str]:
        return window_faults(self.window, length, "cut (min(i, w) with w inside the training length)")

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Clamp every distance at the window: (Tq,), (Tk,) -> float64 (Tq, Tk).

        Example:
            >>> import torch
            >>> Rerope(window=4).rel_pos(torch.tensor([8]), torch.arange(9)).int().tolist()
            [[4, 4, 4, 4, 4, 3, 2, 1, 0]]
        """
        return differences(q_pos, k_pos).clamp(max=self.window)

    @property
    def bands(self) -> tuple[Band, ...]:
        window = self.window
        return (Band(Near(window), identity, identity), Band(Far(window), lambda m: m * 0 + window, lambda n: n * 0))
