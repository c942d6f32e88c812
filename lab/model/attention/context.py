"""Context parallelism: the ranks of a group each hold a part of every row, and attend to whole rows by a part of heads.

Before attention an all-to-all exchanges a rank's tokens of all heads for all tokens of its heads, and another one
exchanges the outputs back, so that ids, masks, position methods and kernels are those of one process:

    rank 0    tokens 0 1, heads a b          tokens 0 1 2 3, head a
    rank 1    tokens 2 3, heads a b    <->   tokens 0 1 2 3, head b

An all-to-all of equal parts is its own transpose, so that gradients are exchanged alike.

Axes: B batch, T tokens of the row, t tokens of this rank, N heads, n heads of this rank, H per head.

Source: DeepSpeed-Ulysses (arXiv:2309.14509), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


class Exchange(torch.autograd.Function):
    """Part i of rank j becomes part j of rank i."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        """Exchange the parts, the first axis."""
        ctx.group = group
        parts = parts.contiguous()
        out = torch.empty_like(parts)
        distributed.all_to_all_single(out, parts, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Exchange the gradients of the parts back."""
        return Exchange.forward(ctx, grads[0], ctx.group), None


@dataclass(frozen=True, eq=False)
class ContextGroup:
    """The ranks that hold the parts of the same rows, in order, and the place of this one among them."""

    group: Any
    degree: int
    rank: int

    @classmethod
    def of(cls, degree: int) -> ContextGroup | None:
        """Divide all ranks into groups of so many consecutive ones; None where each is alone. A collective call."""
        if degree == 1:
            return None
        group, _ = distributed.new_subgroups(degree)
        return cls(group, degree, distributed.get_rank(group))

    def own(self, x: Tensor) -> Tensor:
        """Take this rank's part of (B, T, ...): (B, t, ...)."""
        return x.tensor_split(self.degree, dim=1)[self.rank]

    def to_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Exchange the tokens of this rank for its heads, all three in one call: (B, N, t, H) to (B, n, T, H).

        Consecutive query heads share a key-value head, so that each rank has the key-value heads of its query heads.
        """
        parts = [x.unflatten(1, (self.degree, -1)) for x in (q, k, v)]
        got: Tensor = Exchange.apply(torch.cat(parts, dim=2).movedim(1, 0), self.group)  # type: ignore[no-untyped-call]
        whole = got.movedim(0, 2).flatten(2, 3)
        return whole.split([part.shape[2] for part in parts], dim=1)

    def to_tokens(self, out: Tensor) -> Tensor:
        """Exchange the heads of this rank for its tokens: (B, n, T, H) to (B, N, t, H)."""
        parts = out.unflatten(2, (self.degree, -1)).movedim(2, 0)
        got: Tensor = Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return got.movedim(0, 1).flatten(1, 2)
