"""Plain distance: attention uses the distance between query and key unchanged.

    rel_pos(m, n) = m - n,   in tokens

Source: STRING, arXiv:2410.18745, Eq. 1.
"""

from dataclasses import dataclass
from typing import Literal

from lab.positions.method import Band, Distance, Tensor, differences, identity
from lab.positions.regions import Far


@dataclass(frozen=True, kw_only=True)
class Plain(Distance):
    """Plain distance, which has no parameters of its own."""

    method: Literal["plain"] = "plain"

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Subtract every key position from every query position: (Tq,), (Tk,) -> float64 (Tq, Tk).

        Example:
            >>> import torch
            >>> Plain().rel_pos(torch.tensor([2, 3]), torch.tensor([0, 1, 2])).int().tolist()
            [[2, 1, 0], [3, 2, 1]]
        """
        return differences(q_pos, k_pos)

    @property
    def bands(self) -> tuple[Band, ...]:
        return (Band(Far(0), identity, identity),)
