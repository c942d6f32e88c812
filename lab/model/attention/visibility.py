"""The keys that each query sees."""

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

    def dense(self) -> Tensor:
        """Build the boolean mask (B or 1, n_q, n_k)."""
        first = self.n_k - self.n_q
        places = torch.arange(self.n_k, device=self.device)
        q, k = places[None, first:, None], places[None, None, :]
        docs = torch.zeros_like(places)[None] if self.doc_ids is None else self.doc_ids
        q_doc, k_doc = docs[:, first:, None], docs[:, None, :]
        visible = MASKS[self.mask].visible(q, k, q_doc, k_doc) & (q_doc >= 0) & (k_doc >= 0)
        if self.q_pos is not None and self.k_pos is not None:
            ordered = self.k_pos[:, None, :] <= self.q_pos[:, :, None]
            if self.mask == "anchor" and self.doc_ids is not None:
                ordered = ordered | ((k_doc == 0) & (q_doc != 0))
            visible = visible & ordered
        if self.anchor_of is not None:
            visible = visible | (self.anchor_of[:, first:, None] == k)
        return visible.expand(-1, self.n_q, self.n_k)


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
