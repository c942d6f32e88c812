"""Plain distance: attention sees the distance between query and key as it is.

    rel_pos(m, n) = m - n,   in tokens

Source: papers/string.txt, Eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lab.positions.base import Band, DistanceConfig, identity
from lab.positions.regions import All

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Plain(DistanceConfig):
    """Plain distance has no parameters of its own."""

    method: Literal["plain"] = "plain"


Config = Plain


def rel_pos(config: Plain, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Subtract every key position from every query position.

    Shapes: (Tq,), (Tk,) -> (Tq, Tk).
    Example:
        >>> import torch
        >>> rel_pos(Plain(), torch.tensor([2, 3]), torch.tensor([0, 1, 2])).tolist()
        [[2, 1, 0], [3, 2, 1]]
    """
    return q_pos[:, None] - k_pos[None, :]


def bands(config: Plain) -> tuple[Band, ...]:
    """Give the whole causal mask as one band."""
    return (Band(All(), identity, identity),)
