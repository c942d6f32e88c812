"""The segments of a packed row, the spans of queries and keys that kernels run, and dense masks.

A packed row is a sequence of segments; tokens from `cu_seqlens[-1]` on are padding, neither attended nor scored.
Segments are built once per micro-batch and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lab.errors import DataError
from lab.masks import MASKS
from lab.model.devices import moved

HOST = "cpu"  # device of the lengths, whatever the default device


@dataclass(frozen=True, eq=False)
class Spans:
    """Contiguous runs of queries, each with its run of keys; a run's last query is aligned with its last key.

    In causal spans a query sees its own key and `before` keys before it, -1 for all of those; else all keys.

    Shapes: `cu_q` and `cu_k` int32 (S + 1,) on the tokens' device; `q_lengths` and `k_lengths` S host integers.
    """

    cu_q: Tensor
    cu_k: Tensor
    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    causal: bool = True
    before: int = -1

    @classmethod
    def of(cls, q_lengths: Sequence[int], k_lengths: Sequence[int], device: torch.device) -> Spans:
        cu_q, cu_k = (moved(cumulative(lengths), device) for lengths in (q_lengths, k_lengths))
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

    `anchors` holds, for each segment, the place in the row of one more token that all its tokens see, -1 for none.

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
        """Build the layout of segments of the given lengths in a row of `n_tokens` tokens."""
        return cls(moved(cumulative(lengths), torch.device(device)), tuple(lengths), n_tokens, anchors)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, n_tokens: int) -> Segments:
        """Build the layout from cumulative lengths, refusing any that fall or pass the row's end."""
        lengths = tuple(cu_seqlens.diff().tolist())
        if not cu_seqlens.numel() or int(cu_seqlens[0]) != 0 or min(lengths, default=0) < 0 or sum(lengths) > n_tokens:
            raise DataError(
                f"cu_seqlens={cu_seqlens.tolist()}: must start at 0, never decrease and end at {n_tokens} or before"
            )
        lengths = tuple(n for n in lengths if n)  # kernels take no empty segments
        return cls.from_lengths(lengths, n_tokens, cu_seqlens.device)

    @property
    def n_real(self) -> int:
        """Tokens that are not padding."""
        return sum(self.lengths)

    @cached_property
    def position_ids(self) -> Tensor:
        """Ids that start again at 0 in every segment, int64 (n_tokens,); padding continues as one more segment."""
        lengths = [*self.lengths, self.n_tokens - self.n_real]
        return moved(torch.cat([torch.arange(n, device=HOST) for n in lengths]), self.cu_seqlens.device)

    @cached_property
    def doc_ids(self) -> Tensor:
        """Number of each token's segment, int64 (n_tokens,); -1 for padding."""
        return self.per_token(range(len(self.lengths)))

    def per_token(self, numbers: Sequence[int]) -> Tensor:
        """Repeat each segment's number for its tokens; -1 for padding."""
        lengths = torch.tensor([*self.lengths, self.n_tokens - self.n_real], device=HOST)
        return moved(torch.tensor([*numbers, -1], device=HOST).repeat_interleave(lengths), self.cu_seqlens.device)

    @cached_property
    def spans(self) -> Spans:
        """Every segment's queries with its keys, its anchor before them, which a causal kernel shows every query."""
        if self.anchors is None:
            return Spans(self.cu_seqlens, self.cu_seqlens, self.lengths, self.lengths)
        k_lengths = [n + (anchor >= 0) for n, anchor in zip(self.lengths, self.anchors, strict=True)]
        cu_k = moved(cumulative(k_lengths), self.cu_seqlens.device)
        return Spans(self.cu_seqlens, cu_k, self.lengths, tuple(k_lengths))

    @cached_property
    def key_places(self) -> Tensor:
        """Places in the row of the keys of all spans, int64."""
        assert self.anchors is not None, "only rows with anchors have key places"
        own = torch.arange(self.n_real, device=HOST).split(list(self.lengths))
        anchors = [torch.tensor([a] * (a >= 0), dtype=torch.int64, device=HOST) for a in self.anchors]
        parts = [torch.cat([anchor, x]) for anchor, x in zip(anchors, own)]
        return moved(torch.cat(parts), self.cu_seqlens.device)

    def mask(self) -> Tensor:
        """Build the boolean mask of the row, (1, n_tokens, n_tokens): its own segment and the segment's anchor."""
        mask = dense_mask(self.n_tokens, self.n_tokens, self.cu_seqlens.device, "document", self.doc_ids[None])
        if self.anchors is None:
            return mask
        places = torch.arange(self.n_tokens, device=self.cu_seqlens.device)
        return mask | (self.per_token(self.anchors)[None, :, None] == places)


def dense_mask(n_q: int, n_k: int, device: torch.device, mask: str = "causal", doc_ids: Tensor | None = None) -> Tensor:
    """Build a boolean mask over rows whose queries are the last of their tokens; padding (-1) neither sees nor is seen.

    Shapes: doc_ids (B or 1, n_k) -> (B or 1, n_q, n_k).
    """
    places = torch.arange(n_k, device=device)
    docs = torch.zeros_like(places)[None] if doc_ids is None else doc_ids
    q_doc, k_doc = docs[:, n_k - n_q :, None], docs[:, None, :]
    return MASKS[mask]().visible(places[None, n_k - n_q :, None], places, q_doc, k_doc) & (q_doc >= 0) & (k_doc >= 0)
