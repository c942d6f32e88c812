"""Where the segments of a packed row begin and end, and how to regroup them into padded batches.

A packed row is segments laid end to end; tokens from `cu_seqlens[-1]` on are padding, neither attended nor scored.
The layout is made once per micro-batch and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lab.errors import DataError

BUCKET_RATIO = 0.5  # shortest over longest segment of a padded batch; measured best of 0, 0.5, 0.75 at windows 128-1024


@dataclass(frozen=True, eq=False)
class Bucket:
    """Segments of similar length as one padded batch: rows `start` to `start + n * length` of the padded tokens."""

    start: int
    n: int
    length: int


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of one packed row of `n_tokens` tokens.

    Shapes: `cu_seqlens` int32 (S + 1,) on the tokens' device; `lengths` S host integers, so that nothing waits for
    the device.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    n_tokens: int

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], n_tokens: int, device: torch.device | str = "cpu") -> Segments:
        """Build the layout of segments of the given lengths in a row of `n_tokens` tokens."""
        cu_seqlens = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(torch.int32).to(device)
        return cls(cu_seqlens, tuple(lengths), n_tokens)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, n_tokens: int) -> Segments:
        """Build the layout from cumulative lengths, checking them.

        Raises: DataError.
        """
        lengths = tuple(cu_seqlens.diff().tolist())
        if int(cu_seqlens[0]) != 0 or min(lengths, default=0) < 0 or sum(lengths) > n_tokens:
            raise DataError(
                f"cu_seqlens={cu_seqlens.tolist()}: must start at 0, never fall and end at {n_tokens} or before"
            )
        lengths = tuple(n for n in lengths if n)  # an empty segment holds nothing to attend
        return cls.from_lengths(lengths, n_tokens, cu_seqlens.device)

    @property
    def max_length(self) -> int:
        """Length of the longest segment."""
        return max(self.lengths, default=0)

    @property
    def n_real(self) -> int:
        """Tokens that are not padding."""
        return sum(self.lengths)

    @cached_property
    def position_ids(self) -> Tensor:
        """Ids that start again at 0 in every segment, int64 (n_tokens,); padding continues as one more segment."""
        lengths = [*self.lengths, self.n_tokens - self.n_real]
        ids = torch.cat([torch.arange(n) for n in lengths]) if lengths else torch.arange(0)
        return ids.to(self.cu_seqlens.device)

    @cached_property
    def doc_ids(self) -> Tensor:
        """Number of each token's segment, int64 (n_tokens,); -1 for padding."""
        lengths = torch.tensor([*self.lengths, self.n_tokens - self.n_real])
        ids = torch.tensor([*range(len(self.lengths)), -1])
        return ids.repeat_interleave(lengths).to(self.cu_seqlens.device)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Padded batches, longest segments first, none padded to more than 1 / BUCKET_RATIO of a segment's length."""
        return self._regroup[0]

    @cached_property
    def to_padded(self) -> Tensor:
        """Token of each padded row, int64; n_tokens (a zero row) where the row is filling."""
        return self._regroup[1].to(self.cu_seqlens.device)

    @cached_property
    def from_padded(self) -> Tensor:
        """Padded row of each token, int64 (n_tokens,); the number of padded rows (a zero row) for padding tokens."""
        return self._regroup[2].to(self.cu_seqlens.device)

    @cached_property
    def _regroup(self) -> tuple[tuple[Bucket, ...], Tensor, Tensor]:
        starts = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
        order = sorted(range(len(self.lengths)), key=lambda s: -self.lengths[s])
        groups: list[list[int]] = []
        for s in order:
            if not groups or self.lengths[s] < BUCKET_RATIO * self.lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(s)
        buckets, rows, start = [], [], 0
        for group in groups:
            length = self.lengths[group[0]]
            offsets = torch.arange(length)[None, :]
            begins = torch.tensor([starts[s] for s in group])[:, None]
            sizes = torch.tensor([self.lengths[s] for s in group])[:, None]
            rows.append(torch.where(offsets < sizes, begins + offsets, self.n_tokens).flatten())
            buckets.append(Bucket(start, len(group), length))
            start += len(group) * length
        to_padded = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
        from_padded = torch.full((self.n_tokens + 1,), start)
        from_padded[to_padded] = torch.arange(start)
        from_padded = from_padded[:-1]
        return tuple(buckets), to_padded, from_padded
