"""Divide a row: into segments, into the spans of queries and keys that kernels run, and among ranks.

A packed row is a sequence of segments; tokens from `cu_seqlens[-1]` on are padding, neither attended nor scored.
Segments are built once per micro-batch and shared by all layers.

Context parallelism: each rank of a group computes a part of every row. Before attention an all-to-all exchanges a
rank's tokens of all heads for all tokens of its heads. Another one exchanges the outputs back. Ids, masks, position
methods and kernels are therefore those of one process:

    rank 0    tokens 0 1, heads a b          tokens 0 1 2 3, head a
    rank 1    tokens 2 3, heads a b    <->   tokens 0 1 2 3, head b

Axes: B batch, T tokens of the row, t tokens of this rank, N heads, n heads of this rank, H per head.

Source: DeepSpeed-Ulysses (arXiv:2309.14509), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, distributed
from torch.distributed._functional_collectives import all_to_all_single_autograd

from lab.core.errors import DataError
from lab.masks import MASKS
from lab.model.devices import to_device

HOST = "cpu"  # device of the lengths, whatever the default device


@dataclass(frozen=True, eq=False)
class Spans:
    """Contiguous runs of queries, each with its run of keys; a run's last query is aligned with its last key.

    In causal spans a query sees its own key and the `before` keys before it, or all of those for -1. In other spans
    it sees all keys.

    Shapes: `cu_q` and `cu_k` int32 (S + 1,) on the tokens' device; `q_lengths` and `k_lengths` S host integers.
    """

    cu_q: Tensor
    cu_k: Tensor
    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    causal: bool = True
    before: int = -1

    @classmethod
    def from_lengths(cls, q_lengths: Sequence[int], k_lengths: Sequence[int], device: torch.device) -> Spans:
        cu_q, cu_k = (to_device(cumulative(lengths), device) for lengths in (q_lengths, k_lengths))
        return cls(cu_q, cu_k, tuple(q_lengths), tuple(k_lengths))

    @property
    def arguments(self) -> tuple[Tensor, Tensor, int, int]:
        """Cumulative lengths of queries and keys and the longest of each, as variable-length kernels take them."""
        return self.cu_q, self.cu_k, max(self.q_lengths), max(self.k_lengths)


def cumulative(lengths: Sequence[int]) -> Tensor:
    """Compute the cumulative lengths from 0, int32 (S + 1,)."""
    return torch.tensor([0, *lengths], dtype=torch.int64, device=HOST).cumsum(0).to(torch.int32)


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of one packed row of `n_tokens` tokens.

    `anchors` contains for each segment the index in the row of one more token that all its tokens see, -1 for none.

    Shapes: `cu_seqlens` int32 (S + 1,) on the tokens' device; `lengths` and `anchors` S host integers, so that
        nothing waits for the device.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    n_tokens: int
    anchors: tuple[int, ...] | None = None

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        n_tokens: int,
        device: torch.device | str = "cpu",
        anchors: tuple[int, ...] | None = None,
    ) -> Segments:
        """Build segments from their lengths on the host."""
        return cls(to_device(cumulative(lengths), torch.device(device)), tuple(lengths), n_tokens, anchors)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, n_tokens: int) -> Segments:
        """Build segments from cumulative lengths; reject those that decrease or pass the row's end."""
        lengths = cu_seqlens.diff().tolist()
        if not cu_seqlens.numel() or int(cu_seqlens[0]) != 0 or min(lengths, default=0) < 0 or sum(lengths) > n_tokens:
            raise DataError(
                f"cu_seqlens={cu_seqlens.tolist()}: must start at 0, never decrease and end at {n_tokens} or before"
            )
        return cls.from_lengths([*filter(None, lengths)], n_tokens, cu_seqlens.device)  # kernels take no empty segments

    @property
    def n_real(self) -> int:
        """Tokens that are not padding."""
        return sum(self.lengths)

    @cached_property
    def position_ids(self) -> Tensor:
        """Ids that start again at 0 in every segment, int64 (n_tokens,); padding continues as one more segment."""
        lengths = [*self.lengths, self.n_tokens - self.n_real]
        return to_device(torch.cat([torch.arange(n, device=HOST) for n in lengths]), self.cu_seqlens.device)

    @cached_property
    def doc_ids(self) -> Tensor:
        """Number of each token's segment, int64 (n_tokens,); -1 for padding."""
        return self.per_token(range(len(self.lengths)))

    def per_token(self, numbers: Sequence[int]) -> Tensor:
        """Repeat each segment's number for its tokens; -1 for padding."""
        lengths = torch.tensor([*self.lengths, self.n_tokens - self.n_real], device=HOST)
        return to_device(torch.tensor([*numbers, -1], device=HOST).repeat_interleave(lengths), self.cu_seqlens.device)

    @cached_property
    def spans(self) -> Spans:
        """Every segment's queries with its keys, after the key of its anchor if it has one."""
        if self.anchors is None:
            return Spans(self.cu_seqlens, self.cu_seqlens, self.lengths, self.lengths)
        # Causal kernels align the last query with the last key: with one more key in front, query i of a segment sees
        # the keys 0 .. i + 1 of its span, that is the anchor and the segment's keys 0 .. i.
        k_lengths = [n + (anchor >= 0) for n, anchor in zip(self.lengths, self.anchors, strict=True)]
        cu_k = to_device(cumulative(k_lengths), self.cu_seqlens.device)
        return Spans(self.cu_seqlens, cu_k, self.lengths, tuple(k_lengths))

    @cached_property
    def key_indices(self) -> Tensor:
        """Indices in the row of the keys of all spans, int64."""
        assert self.anchors is not None, "only rows with anchors gather keys"
        parts = []
        for anchor, indices in zip(self.anchors, torch.arange(self.n_real, device=HOST).split(list(self.lengths))):
            if anchor >= 0:
                parts.append(torch.tensor([anchor], device=HOST))
            parts.append(indices)
        return to_device(torch.cat(parts), self.cu_seqlens.device)

    def mask(self) -> Tensor:
        """Build the boolean mask of the row, (1, n_tokens, n_tokens): its own segment and the segment's anchor."""
        mask = dense_mask(self.n_tokens, self.n_tokens, self.cu_seqlens.device, "document", self.doc_ids[None])
        if self.anchors is None:
            return mask
        indices = torch.arange(self.n_tokens, device=self.cu_seqlens.device)
        return mask | (self.per_token(self.anchors)[None, :, None] == indices)


def dense_mask(n_q: int, n_k: int, device: torch.device, mask: str = "causal", doc_ids: Tensor | None = None) -> Tensor:
    """Build a boolean mask over rows whose queries are the last of their tokens; padding (-1) neither sees nor is seen.

    Shapes: doc_ids (B or 1, n_k) -> (B or 1, n_q, n_k).
    """
    indices = torch.arange(n_k, device=device)
    if doc_ids is None:
        doc_ids = torch.zeros_like(indices)[None]
    q_doc, k_doc = doc_ids[:, n_k - n_q :, None], doc_ids[:, None, :]
    return MASKS[mask]().visible(indices[None, n_k - n_q :, None], indices, q_doc, k_doc) & (q_doc >= 0) & (k_doc >= 0)


@dataclass(frozen=True, eq=False)
class ContextGroup:
    """The ranks that compute the parts of the same rows, in order, and the number of this one among them."""

    group: distributed.ProcessGroup
    degree: int
    rank: int

    @classmethod
    def create(cls, degree: int) -> ContextGroup | None:
        """Divide all ranks into groups of `degree` consecutive ones; None for groups of one. A collective call."""
        if degree == 1:
            return None
        group, _ = distributed.new_subgroups(degree)
        return cls(group, degree, distributed.get_rank(group))

    def local_part(self, x: Tensor) -> Tensor:
        """View this rank's part of (B, T, ...): (B, t, ...)."""
        return x.tensor_split(self.degree, dim=1)[self.rank]

    def sizes(self, n_tokens: int) -> list[int]:
        """Count the tokens of each rank's part of a row, as `tensor_split` cuts it."""
        size, more = divmod(n_tokens, self.degree)
        return [size + 1] * more + [size] * (self.degree - more)

    def to_heads(self, x: Tensor, n_tokens: int) -> Tensor:
        """Exchange the tokens of this rank for its heads: queries, keys or values (B, N, t, H) to (B, n, T, H).

        Consecutive query heads share a key-value head, so that each rank has the key-value heads of its query heads.
        """
        # The exchange cuts the first axis into one part for each rank: this rank's tokens of each rank's heads are
        # sent, and each rank's tokens of this rank's heads are received. Parts received in the order of the ranks are
        # the tokens of the row in order.
        parts = x.unflatten(1, (self.degree, -1)).permute(1, 3, 0, 2, 4)  # rank, t, B, n, H
        sent = [x.shape[2]] * self.degree
        received = all_to_all_single_autograd(parts.flatten(0, 1), self.sizes(n_tokens), sent, self.group)
        return received.permute(1, 2, 0, 3)

    def to_tokens(self, out: Tensor) -> Tensor:
        """Exchange the heads of this rank for its tokens: (B, n, T, H) to (B, N, t, H)."""
        sizes = self.sizes(out.shape[2])
        own = sizes[self.rank]
        received = all_to_all_single_autograd(
            out.permute(2, 0, 1, 3).contiguous(), [own] * self.degree, sizes, self.group
        )
        parts: Tensor = received.unflatten(0, (self.degree, own))  # rank, t, B, n, H
        # The first axis numbers the ranks, that is the heads: it must stand next to n before both are joined.
        return parts.permute(2, 1, 0, 3, 4).flatten(2, 3).transpose(1, 2)
