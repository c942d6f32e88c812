"""Context parallelism: the ranks of a group each hold a part of every row, and attend to whole rows by a part of heads.

Before attention an all-to-all exchanges a rank's tokens of all heads for all tokens of its heads. Another one exchanges
the outputs back. Ids, masks, position methods and kernels are therefore those of one process:

    rank 0    tokens 0 1, heads a b          tokens 0 1 2 3, head a
    rank 1    tokens 2 3, heads a b    <->   tokens 0 1 2 3, head b

Axes: B batch, T tokens of the row, t tokens of this rank, N heads, n heads of this rank, H per head.

Source: DeepSpeed-Ulysses (arXiv:2309.14509), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, distributed
from torch.distributed._functional_collectives import all_to_all_single_autograd


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
        """View this rank's part of (B, T, ...): (B, t, ...)."""
        return x.tensor_split(self.degree, dim=1)[self.rank]

    def last(self, part: Tensor, n_tokens: int) -> Tensor:
        """Send every rank the row's last token, without a gradient: (B, t, ...) to (B, 1, ...)."""
        holder = min(n_tokens, self.degree) - 1
        mine = self.rank == holder
        out = part[:, -1:].contiguous() if mine else part.new_empty(len(part), 1, *part.shape[2:])
        distributed.broadcast(out, group=self.group, group_src=holder)
        return out

    def sizes(self, n_tokens: int) -> list[int]:
        """Count the tokens of each rank's part of a row; the parts before the remainder have one more."""
        each, more = divmod(n_tokens, self.degree)
        return [each + (rank < more) for rank in range(self.degree)]

    def to_heads(self, x: Tensor, n_tokens: int) -> Tensor:
        """Exchange the tokens of this rank for its heads: queries, keys or values (B, N, t, H) to (B, n, T, H).

        Consecutive query heads share a key-value head, so that each rank has the key-value heads of its query heads.
        """
        parts = x.unflatten(1, (self.degree, -1)).permute(1, 3, 0, 2, 4)  # rank, t, B, n, H
        sent = [x.shape[2]] * self.degree
        received = self.sizes(n_tokens)
        got = all_to_all_single_autograd(parts.flatten(0, 1), received, sent, self.group)
        return got.permute(1, 2, 0, 3)

    def to_tokens(self, out: Tensor) -> Tensor:
        """Exchange the heads of this rank for its tokens: (B, n, T, H) to (B, N, t, H)."""
        sizes = self.sizes(out.shape[2])
        received = [sizes[self.rank]] * self.degree
        got = all_to_all_single_autograd(out.permute(2, 0, 1, 3), received, sizes, self.group)
        parts: Tensor = got.unflatten(0, (self.degree, sizes[self.rank]))  # rank, t, B, n, H
        return parts.permute(2, 1, 0, 3, 4).flatten(2, 3).transpose(1, 2)
