"""A packed row as a compiled block reads it: between packs only the number of its spans changes, never a constant.

Padding becomes segments of its own, so that the spans cover all tokens, and the longest span that kernels are given is
that of the run, not of the pack. Attention to padding is computed and not scored:

    lengths 3 2, 3 tokens of padding, longest 4    cu_q  0 3 5 8

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.model.attention.rotary import Rotation


@dataclass(frozen=True, eq=False)
class FixedRow:
    """The spans of a whole row; their number, and that of the keys, may differ between packs in one graph.

    Where spans have an anchor before their own keys, `cu_k` holds the ends of their keys and `key_places` lists them;
    left out, the keys of a span are its tokens.

    Shapes: cu_q and cu_k int32 (S + 1,); key_places int64 (Tk,).
    """

    cu_q: Tensor
    longest: int
    cu_k: Tensor | None = None
    key_places: Tensor | None = None

    def __post_init__(self) -> None:
        """Let the compiler assume no number of spans or keys."""
        for x in (self.cu_q, self.cu_k, self.key_places):
            if x is not None:
                torch._dynamo.mark_dynamic(x, 0)

    @property
    def arguments(self) -> tuple[Tensor, Tensor, int, int]:
        """Cumulative lengths of queries and keys and the longest of each, as variable-length kernels take them."""
        if self.cu_k is None:
            return self.cu_q, self.cu_q, self.longest, self.longest
        return self.cu_q, self.cu_k, self.longest, self.longest + 1

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, factor: Tensor | None, kernel: Callable[..., Tensor]
    ) -> Tensor:
        """Attend by one call of a variable-length kernel from queries to keys that are not rotated yet.

        Tokens come before heads in memory, for the kernel and in what it returns, so that nothing is copied.

        Shapes: q (1, N, T, H); k, v (1, K, T, H); factor (1, T) on the logits; returns (1, N, T, H).
        """
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = (rotation.by_token().rotate(x) for x in (q, k))
        q = q if factor is None else q * factor[:, :, None, None]
        q_TNH, k_TNH, v_TNH = (x.flatten(0, 1).to(v.dtype) for x in (q, k, v))
        if self.key_places is not None:
            k_TNH, v_TNH = k_TNH[self.key_places], v_TNH[self.key_places]
        return kernel(q_TNH, k_TNH, v_TNH, self)[None].transpose(1, 2)
