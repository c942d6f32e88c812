"""ReRoPE: distances are plain up to a window and constant beyond it.

    rel_pos(m, n) = min(i, w)       with i = m - n, in tokens

w is the window. With w = 4 the last of 9 tokens sees 4 4 4 4 4 3 2 1 0.

Source: Su 2023, as a baseline of papers/string.txt, section 4. The released ReRoPE always scales queries by log n; here
that is the separate setting `log_n`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions.base import Band, DistanceConfig, identity
from lab.positions.regions import Far, Near
from lab.schema import NonNegative

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rerope(DistanceConfig):
    """ReRoPE's parameters."""

    method: Literal["rerope"] = "rerope"
    window: NonNegative
    """Window w in tokens, the largest relative position; below the training length."""

    def length_faults(self, length: int) -> list[str]:
        """Refuse a window that no distance reaches."""
        if self.window >= length - 1:
            return [
                f"window={self.window}: must be < {length - 1}, the longest distance in {length} tokens, or none is "
                "cut (min(i, w) with w inside the training length); lower it"
            ]
        return []


Config = Rerope


def rel_pos(config: Rerope, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Cut every distance at the window.

    Shapes: (Tq,), (Tk,) -> (Tq, Tk).
    Example:
        >>> import torch
        >>> rel_pos(Rerope(window=4), torch.tensor([8]), torch.arange(9)).tolist()
        [[4, 4, 4, 4, 4, 3, 2, 1, 0]]
    """
    return (q_pos[:, None] - k_pos[None, :]).clamp(max=config.window)


def bands(config: Rerope) -> tuple[Band, ...]:
    """Give the window of plain distances, and the rest with queries at w and keys at 0."""
    window = config.window
    return (
        Band(Near(window), identity, identity),
        Band(Far(window), lambda m: m * 0 + window, lambda n: n * 0),
    )
