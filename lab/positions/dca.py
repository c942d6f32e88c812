"""Dual Chunk Attention: distances inside a chunk are plain, those to other chunks stay below the pretraining window.

    keys            P_k(n)  = n mod s
    same chunk      P_q(m)  = m mod s
    previous chunk  P_q(m)  = s + r  for r = m mod s < w,  else c - 1
    earlier chunks  P_q(m)  = c - 1
    rel_pos(m, n)   = P_q(m) - P_k(n),   in tokens

s is the chunk, c the pretraining window (`train_len`), w the local window. With c = 10, s = 6, w = 4 the successive
queries of a chunk have positions 6 7 8 9 9 9, so that the w nearest tokens keep their true distance across the border.

`parts` selects a part of the method, as in the paper's ablation. `intra`: a token sees its own chunk only, and rel_pos
of all other pairs is nan. `intra_inter`: P_q(m) = c - 1 for the previous chunk too, that is w = 0.

Source: arXiv:2402.17463, section 3, Eq. 2 to 7, and the ablation study above Figure 4. The authors' code clamps at the
chunk size where the paper has c - 1, takes s = 5c/8 where the paper has 3c/4, and scales logits with the length; this
file follows the paper.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from lab.core.schema import NonNegative, Positive
from lab.positions.method import Band, Distance, Tensor
from lab.positions.regions import ChunksBack


class Dca(Distance):
    """Dual Chunk Attention's parameters."""

    limit: ClassVar[str] = "train_len"
    method: Literal["dca"] = "dca"
    train_len: Positive
    """Pretraining window c in tokens; all relative positions stay below it."""
    chunk: Positive | None = None
    """Chunk size s in tokens, at most the pretraining window c. Default: 3c/4, as in the paper."""
    window: NonNegative | None = None
    """Local window w in tokens, at most c - s. Default: c - s, as in the paper."""
    parts: Literal["all", "intra_inter", "intra"] = "all"
    """Parts in use: all three, intra- and inter-chunk attention without the successive one, or intra-chunk alone."""

    def rules(self) -> Iterator[str]:
        """Require every relative position to stay below the pretraining window."""
        c, s = self.train_len, self.s
        if self.parts != "all" and self.window is not None:
            yield self.format_error("window", f"would be ignored, parts={self.parts} has no local window; leave it out")
        elif s > c:
            yield (
                f"chunk={s}: must be <= train_len={c}, the pretraining window c (the paper has s < c, 3c/4 by default);"
                f" use {max(1, 3 * c // 4)}"
            )
        elif self.w > c - s:
            yield (
                f"window={self.w}: must be <= train_len - chunk = {c - s} (the paper's w is c - s; larger ones would"
                " leave the pretraining window); leave it out"
            )

    @property
    def hides_pairs(self) -> bool:
        return self.parts == "intra"

    @property
    def s(self) -> int:
        """Chunk size in tokens."""
        return max(1, 3 * self.train_len // 4) if self.chunk is None else self.chunk

    @property
    def w(self) -> int:
        """Local window of the successive chunk, in tokens; 0 without that attention."""
        if self.parts != "all":
            return 0
        return self.train_len - self.s if self.window is None else self.window

    @property
    def longest_plain(self) -> int:
        """The chunk, or without hidden pairs the queries behind it that keep their distances."""
        if self.parts == "intra":
            return self.s
        # Queries of the successive chunk keep their distance below this, and so does the first query at c - 1.
        plain = self.s + min(self.w, self.s)
        if plain == self.train_len - 1:
            plain += 1
        return plain

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Choose the query's position by how many chunks lie between it and the key; hidden pairs are nan.

        Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
        Example:
            >>> import torch
            >>> dca = Dca(chunk=6, train_len=10, window=4)
            >>> dca.rel_pos(torch.tensor([11]), torch.arange(12)).int().tolist()
            [[9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]]
            >>> dca.rel_pos(torch.tensor([6]), torch.arange(7)).int().tolist()
            [[6, 5, 4, 3, 2, 1, 0]]
            >>> Dca(chunk=3, train_len=4, parts="intra").rel_pos(torch.tensor([4]), torch.arange(5)).tolist()
            [[nan, nan, nan, 1.0, 0.0]]
        """
        chunks_back = q_pos[:, None] // self.s - k_pos[None, :] // self.s
        r = q_pos[:, None] % self.s
        last = self.train_len - 1
        successive = (self.s + r).where(r < self.w, last)
        q = r.where(chunks_back <= 0, successive.where(chunks_back == 1, last))
        rel = (q - k_pos[None, :] % self.s).double()
        if self.parts == "intra":
            rel = rel.masked_fill(chunks_back > 0, float("nan"))
        return rel

    @property
    def bands(self) -> tuple[Band, ...]:
        """The same chunk, the previous one and the earlier ones with one key map, or the first band alone."""
        s, w, last = self.s, self.w, self.train_len - 1

        def inside(n: Tensor) -> Tensor:
            return n % s

        def successive(m: Tensor) -> Tensor:
            r = m % s
            return (s + r) * (r < w) + last * (r >= w)

        same = Band(ChunksBack(s, 0, 0), inside, inside)
        if self.parts == "intra":
            return (same,)
        return (
            same,
            Band(ChunksBack(s, 1, 1), successive, inside),
            Band(ChunksBack(s, 2), lambda m: m * 0 + last, inside),
        )
