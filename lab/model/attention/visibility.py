"""The keys that each query sees, as one predicate for dense masks and for kernels that evaluate it pair by pair."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.masks import MASKS


@dataclass(frozen=True, eq=False)
class Visibility:
    """A mask over rows of tokens whose queries are the last `n_q` of their `n_k` tokens.

    With `q_pos` and `k_pos` a key whose id is above the query's is hidden, except the anchor's. Padding (document -1)
    neither sees nor is seen.

    `anchor_of` holds the place of one more key that each token sees, -1 for none.

    Shapes: doc_ids and anchor_of (B or 1, n_k) or None; q_pos (B or 1, n_q) and k_pos (B or 1, n_k), or None.
    """

    n_q: int
    n_k: int
    device: torch.device
    mask: str = "causal"
    doc_ids: Tensor | None = None
    q_pos: Tensor | None = None
    k_pos: Tensor | None = None
    anchor_of: Tensor | None = None

    @property
    def by_order(self) -> bool:
        """Whether a query sees exactly the keys up to its own place."""
        return self.mask == "causal" and self.doc_ids is None and self.q_pos is None

    @property
    def rows(self) -> int:
        """Number of distinct rows: the batch, or 1 if all are the same."""
        return max([len(x) for x in (self.doc_ids, self.q_pos, self.k_pos) if x is not None], default=1)

    def sees(self, row: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return whether query number `q` of a row sees its key number `k`; all three broadcast."""
        q_index = q + (self.n_k - self.n_q)
        if self.doc_ids is None:
            visible = MASKS[self.mask].visible(q_index, k, q_index * 0, k * 0)
        else:
            q_doc, k_doc = pick(self.doc_ids, row, q_index), pick(self.doc_ids, row, k)
            visible = MASKS[self.mask].visible(q_index, k, q_doc, k_doc) & (q_doc >= 0) & (k_doc >= 0)
        if self.q_pos is not None and self.k_pos is not None:
            ordered = pick(self.k_pos, row, k) <= pick(self.q_pos, row, q)
            if self.mask == "anchor" and self.doc_ids is not None:
                ordered = ordered | ((k_doc == 0) & (q_doc != 0))
            visible = visible & ordered
        if self.anchor_of is not None:
            visible = visible | (pick(self.anchor_of, row, q_index) == k)
        return visible

    def dense(self) -> Tensor:
        """Build the boolean mask (B or 1, n_q, n_k)."""
        row = torch.arange(self.rows, device=self.device)[:, None, None]
        q = torch.arange(self.n_q, device=self.device)[None, :, None]
        k = torch.arange(self.n_k, device=self.device)[None, None, :]
        return self.sees(row, q, k).expand(self.rows, self.n_q, self.n_k)


def pick(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Index a matrix, of which a single row is broadcast."""
    return x[row if len(x) > 1 else row * 0, column]


@dataclass(frozen=True, eq=False)
class GivenMask:
    """A mask given by the caller.

    Shapes: seen (B or 1, n_q, n_k), true where a query sees a key.
    """

    seen: Tensor
    by_order = False

    def dense(self) -> Tensor:
        """Return the mask."""
        return self.seen
