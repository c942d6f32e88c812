"""The causal pairs that a band of attention covers, as a predicate and as tiles that a kernel can run.

A tile is a rectangle of the attention matrix in one of four shapes, causal and upper ones square:

    full    x x x        causal   x . .        upper   x x x        near    x x . .
            x x x                 x x .                . x x                . x x .
                                  x x x                . . x                . . x x

Every region's tiles cover each of its causal pairs exactly once. An upper tile is a causal one with both axes reversed.
A near tile, for kernels that slide a window, ends with the last query's own key; it replaces all tiles of its region.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Shape = Literal["full", "causal", "upper", "near"]


class Tile(NamedTuple):
    """Queries at positions `q` against keys at positions `k`."""

    q: range
    k: range
    shape: Shape

    def shifted(self, q: int, k: int) -> Tile:
        """Move the tile, for instance from positions to indices in a packed row."""
        return Tile(range(self.q.start + q, self.q.stop + q), range(self.k.start + k, self.k.stop + k), self.shape)


def triangle(q: range, k: range, behind: int) -> Iterator[Tile]:
    """Cut the pairs with i >= behind: a rectangle of keys that all queries see, then a causal square."""
    # Earlier queries see no key at this distance.
    q = range(max(q.start, k.start + behind), q.stop)
    if not q:
        return
    # In decoding, a row of keys needs no causal kernel.
    if len(q) == 1:
        yield Tile(q, range(k.start, q.stop - behind), "full")
        return
    seen_by_all = range(k.start, q.start - behind)
    yield Tile(q, range(q.start - behind, q.stop - behind), "causal")
    if seen_by_all:
        yield Tile(q, seen_by_all, "full")


class Near(NamedTuple):
    """The sliding window of pairs with i < width."""

    width: int

    def contains(self, q_pos: Tensor, k_pos: Tensor | int) -> Tensor:
        return q_pos - k_pos < self.width

    def tiles(self, q: range, k: range) -> Iterator[Tile]:
        """Cut the window into blocks of at most `width` queries.

        A block of b queries from a sees its own keys causally, the keys [a + b - width, a) completely, and of the
        keys before those an upper triangle. A single query sees one range of keys.
        """
        if not self.width:
            return
        for start in range(q.start, q.stop, self.width):
            yield from self.block(range(start, min(start + self.width, q.stop)), k)

    def window(self, q: range, k: range) -> Iterator[Tile]:
        if self.width and q:
            yield Tile(q, range(max(k.start, q.start - self.width + 1), q.stop), "near")

    def block(self, q: range, k: range) -> Iterator[Tile]:
        """Cut one block."""
        first = q.start - self.width + 1  # the first key that the first query sees
        whole = max(k.start, q.stop - self.width)  # the first key that every query of the block sees
        if len(q) == 1:
            yield Tile(q, range(max(k.start, first), q.stop), "full")
            return
        yield Tile(q, q, "causal")
        if whole < q.start:
            yield Tile(q, range(whole, q.start), "full")
        # A text may begin inside the triangle. Queries whose window begins before the text see all keys up to
        # `whole`, a rectangle; for the others the triangle is complete.
        cut = max(k.start - first, 0)
        corner = range(q.start + cut, q.stop - 1)
        if corner and cut:
            yield Tile(range(q.start, corner.start), range(k.start, whole), "full")
        if corner:
            yield Tile(corner, range(first + cut, whole), "upper")


class Far(NamedTuple):
    """The pairs with i >= distance."""

    distance: int

    def contains(self, q_pos: Tensor, k_pos: Tensor | int) -> Tensor:
        return q_pos - k_pos >= self.distance

    def tiles(self, q: range, k: range) -> Iterator[Tile]:
        return triangle(q, k, self.distance)


class ChunksBack(NamedTuple):
    """The pairs with a key `least` to `most` chunks of `size` positions before the query's; 0 to 0 is the same."""

    size: int
    least: int
    most: int = 2**31 - 1  # more than any text has, and a number that fits 32-bit ids

    def contains(self, q_pos: Tensor, k_pos: Tensor | int) -> Tensor:
        back = q_pos // self.size - k_pos // self.size
        return (back >= self.least) & (back <= self.most)

    def tiles(self, q: range, k: range) -> Iterator[Tile]:
        """Cut a rectangle per chunk, or a triangle."""
        for begin in range(q.start // self.size * self.size, q.stop, self.size):
            part = range(max(begin, q.start), min(begin + self.size, q.stop))
            if not self.least:
                yield from triangle(part, range(max(begin, k.start), part.stop), 0)
                continue
            keys = range(max(begin - self.most * self.size, k.start), begin - (self.least - 1) * self.size)
            if keys:
                yield Tile(part, keys, "full")


Region = Near | Far | ChunksBack
"""A part of the causal mask.

`contains` returns for each pair of positions, which broadcast, whether it is in the region. `tiles` cuts the causal
pairs of queries and keys that end together into tiles of positions.
"""
