"""Sliding window: a query sees the last W tokens, itself among them, at plain distances.

    rel_pos(m, n) = i  for i < W,  hidden beyond       with i = m - n, in tokens

With W = 3 the queries at 3 and 4 see the keys 1 2 3 and 2 3 4. It is no setting of `position.distance`: layers have it
by their kind (lab.model.layers).

Source: arXiv:2310.06825, section 2, with W as the transformers library counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions.method import Band, Distance, differences, identity
from lab.positions.regions import Near
from lab.schema import Length

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sliding(Distance):
    """The sliding window's parameters."""

    method: Literal["sliding"] = "sliding"
    window: Length
    """Window W in tokens."""

    @property
    def hides_pairs(self) -> bool:
        return True

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Subtract every key position from every query position; pairs beyond the window are nan.

        Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
        Example:
            >>> import torch
            >>> Sliding(window=3).rel_pos(torch.tensor([4]), torch.arange(5)).tolist()
            [[nan, nan, 2.0, 1.0, 0.0]]
        """
        rel = differences(q_pos, k_pos)
        return rel.masked_fill(rel >= self.window, float("nan"))

    @property
    def bands(self) -> tuple[Band, ...]:
        return (Band(Near(self.window), identity, identity),)
