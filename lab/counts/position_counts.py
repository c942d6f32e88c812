"""Exact position frequency, additive over steps, ranks and runs.

For segments s attended causally,

    f(i) = sum over s of max(|s| - i, 0),   0 <= i < max_len            (arXiv:2410.18745, Eq. 2)

f(0) is the number of consumed tokens. With c[n] segments of length n, f is the reversed double cumulative sum of c,
so one integer per length is stored. For ids with gaps, f is the autocorrelation of the ids' indicator,

    f(i) = sum over p of [p is an id] [p - i is an id].

Under a distance method attention uses r = rel_pos(m, n) instead of i = m - n, and f(r) counts those: query index m
exists in every segment longer than m, so that the same histogram of lengths determines

    f(r) = sum over m of (segments longer than m) * #{n <= m : floor(rel_pos(m, n)) = r}.

A type of layer encodes the relative positions below a bound alone: a sliding window, or 0 where nothing is rotated. Its
f is plain below the bound and 0 from there on.

Targets that have a loss are counted too, by visible context c (lab.counts.rows):

    supervised f(i) = sum over c >= i of the targets that see exactly c earlier tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import ArrayLike

from lab.core.errors import DataError
from lab.core.types import FloatArray, IntArray, Row
from lab.counts.rows import pairs_of_ids, sum_to_the_end

RelPos = Callable[[IntArray, IntArray], FloatArray]  # (queries,), (keys,) -> (queries, keys)
COUNTED = ("lengths", "gapped", "supervised", "evidence", "demand", "demand_by_ids")  # added, compared and saved


class PositionCounts:
    """How often each relative position 0 .. max_len - 1 was attended.

    `rel_pos` is a distance method's map from indices in a segment to relative positions. Default: plain distance.
    `encoded` counts the relative positions of each type of layer, from 0 on; where it is empty, all layers have all.

    Example:
        >>> counts = PositionCounts(4)
        >>> counts.add_segments([3, 1])
        >>> counts.frequency().tolist(), counts.tokens
        ([4, 2, 1, 0], 4)
    """

    def __init__(self, max_len: int, rel_pos: RelPos | None = None) -> None:
        if max_len < 1:
            raise DataError(f"max_len={max_len}: must be >= 1, the longest distance counted plus one")
        self.max_len, self.rel_pos = max_len, rel_pos
        self.encoded: Mapping[str, int] = {}
        self.lengths: IntArray = np.zeros(max_len + 1, dtype=np.int64)  # c[n], segments of length n
        # f of what was added by add_positions, and targets by visible context
        self.gapped, self.supervised = np.zeros((2, max_len), dtype=np.int64)
        # scored targets by evidence distance, those of them that have a loss, and these by the distance in ids
        self.evidence, self.demand, self.demand_by_ids = np.zeros((3, max_len), dtype=np.int64)

    def add_segments(self, lengths: Sequence[int] | IntArray) -> None:
        """Add causal segments of the given lengths, in tokens, contiguous ids.

        Raises: DataError for a length outside 0 .. max_len.
        """
        array = np.asarray(lengths, dtype=np.int64)
        if ((array < 0) | (array > self.max_len)).any():
            raise DataError(
                f"lengths={array.min()}..{array.max()}: must be in 0..{self.max_len}, the counter's max_len"
            )
        self.lengths += np.bincount(array, minlength=self.max_len + 1)

    def add_runs(
        self, lengths: Sequence[int] | IntArray, position_ids: IntArray | None, anchors: Sequence[int] | None = None
    ) -> None:
        """Add the causal runs of a packed row: with their rotary ids (default: from 0 in each), and with anchors.

        `anchors` has for each run the index in the row of one more token that all its tokens see, -1 for none.

        Shapes: position_ids int64, one id for each token of the runs, more being padding.
        Raises: DataError as `add_positions`.
        """
        if position_ids is None:
            self.add_segments(lengths)
            return
        added = self._empty()
        ends = np.cumsum(lengths)
        ids = position_ids[: ends[-1]]
        for run in np.split(ids, ends[:-1]):
            added._add_group(run)
        if anchors is not None:
            indices = np.repeat(anchors, lengths)
            added.gapped += np.bincount((ids - ids[indices])[indices >= 0], minlength=self.max_len)
        self.lengths += added.lengths
        self.gapped += added.gapped

    def add_targets(self, targets: IntArray) -> None:
        """Add scored targets; `targets[c]` of them see exactly c earlier tokens.

        Shapes: int64, at most (max_len,).
        Raises: DataError for a longer context.
        """
        if len(targets) > self.max_len:
            raise DataError(f"context={len(targets) - 1}: must be below max_len={self.max_len}, as distances must")
        self.supervised[: len(targets)] += targets

    def add_evidence(self, evidence: IntArray, demand: IntArray, by_ids: IntArray | None = None) -> None:
        """Add scored targets by evidence distance, and those of them that have a loss (lab.counts.rows.by_distance).

        `by_ids` are the latter by the distance in ids. Default: ids have no gaps.

        The distance max_len, of the target after a whole window from its first token, counts as max_len - 1.

        Shapes: int64, at most (max_len + 1,).
        Raises: DataError for a longer distance.
        """
        if by_ids is None:
            by_ids = demand
        if (longest := max(len(evidence), len(by_ids)) - 1) > self.max_len:
            raise DataError(f"evidence distance={longest}: must be at most max_len={self.max_len}")
        for counts, added in ((self.evidence, evidence), (self.demand, demand), (self.demand_by_ids, by_ids)):
            counts[: len(added)] += added[: self.max_len]
            counts[-1] += added[self.max_len :].sum()

    def add_positions(self, position_ids: ArrayLike, doc_ids: ArrayLike, mask: str = "document") -> None:
        """Add one row of tokens with any ids, under a mask; doc_ids below 0 are padding and are not counted.

        `causal` lets every token see all before it, `document` those of its document, `anchor` also document 0.
        Ids must rise strictly inside what is visible, so that no distance is negative.

        Shapes: position_ids and doc_ids integers (T,), or (B, T) for B rows.
        Raises: DataError for shapes that differ, ids that do not rise, or a distance of max_len or more.
        """
        added = self._empty()
        positions = np.asarray(position_ids, dtype=np.int64)
        documents = np.asarray(doc_ids, dtype=np.int64)
        if positions.shape not in {documents.shape, documents.shape[-1:]} or documents.ndim not in {1, 2}:
            raise DataError(
                f"position_ids {positions.shape}: must be shaped as doc_ids {documents.shape}, (T,) or (B, T)"
            )
        if mask not in ("causal", "document", "anchor"):
            raise DataError(f"mask={mask}: unknown mask; use one of: causal, document, anchor")
        positions = np.broadcast_to(positions, documents.shape)
        for ids, docs in zip(np.atleast_2d(positions), np.atleast_2d(documents), strict=True):
            added._add_row(ids[docs >= 0], docs[docs >= 0], mask)
        self.lengths += added.lengths
        self.gapped += added.gapped

    def _empty(self) -> PositionCounts:
        """Return a counter for the rows of one call, so that nothing of the call is counted if a row is rejected."""
        if self.rel_pos is not None:
            raise DataError("position_ids: ids are counted under plain distance only; add segments by their lengths")
        return PositionCounts(self.max_len)

    def _add_row(self, ids: IntArray, docs: IntArray, mask: str) -> None:
        if mask == "causal":
            self._add_group(ids)
            return
        # Stable, so that the ids of a document keep their order.
        order = np.argsort(docs, kind="stable")
        for group in np.split(ids[order], np.flatnonzero(np.diff(docs[order])) + 1):
            self._add_group(group)
        of_anchor = docs == 0
        if mask == "anchor" and of_anchor.any() and not of_anchor.all():
            if of_anchor[np.argmin(of_anchor) :].any():
                raise DataError("doc_ids: document 0, the anchor, must come before all others")
            keys, queries = ids[of_anchor], ids[~of_anchor]
            if queries.min() <= keys.max():
                raise DataError("position_ids: a token must not come before the anchor it sees; use running ids")
            self._check_span(int(queries.max() - keys.min()))
            self.gapped += pairs_of_ids(queries - keys.min(), keys - keys.min(), self.max_len)

    def _add_group(self, ids: IntArray) -> None:
        """Add all pairs of one group of tokens that see each other causally."""
        if len(ids) == 0:
            return
        steps = np.diff(ids)
        if len(steps) and steps.min() < 1:
            raise DataError(
                "position_ids: must rise strictly where tokens see each other; use mask: document for resets"
            )
        self._check_span(int(ids[-1] - ids[0]))
        if len(steps) == 0 or steps.max() == 1:
            self.lengths[len(ids)] += 1
            return
        self.gapped += pairs_of_ids(ids - ids[0], ids - ids[0], self.max_len)

    def _check_span(self, span: int) -> None:
        if span >= self.max_len:
            raise DataError(f"position_ids: distance {span} must be below max_len={self.max_len}")

    def frequency(self, kind: str | None = None) -> IntArray:
        """Return f(i) for 0 <= i < max_len of a type of layer, or of that which encodes most; int64 (max_len,)."""
        bound = max(self.encoded.values(), default=self.max_len)
        if kind is not None:
            bound = self.encoded[kind]
        longer = sum_to_the_end(self.lengths)[1:]  # segments of more than m tokens
        # A distance method applies to full layers alone, so that a bound means plain distance.
        if self.rel_pos is None or bound < self.max_len:
            return (sum_to_the_end(longer) + self.gapped) * (np.arange(self.max_len) < bound)
        out = np.zeros(self.max_len, dtype=np.int64)
        indices = np.arange(int(np.count_nonzero(longer)))
        for start in range(0, len(indices), 256):
            queries = indices[start : start + 256]  # no matrix of all queries, which takes gigabytes at 128K
            rel = np.floor(self.rel_pos(queries, indices[: queries[-1] + 1]))
            for m, row in zip(queries, rel, strict=True):
                seen = row[: m + 1]
                seen = seen[~np.isnan(seen)].astype(np.int64)  # a method may hide pairs
                out += longer[m] * np.bincount(seen, minlength=self.max_len)
        return out

    def supervised_f(self) -> IntArray:
        """Return the supervised f(i) for 0 <= i < max_len, int64 (max_len,)."""
        return sum_to_the_end(self.supervised)

    def g(self) -> IntArray:
        """Return the demand by distance 0 <= d < max_len, int64 (max_len,)."""
        return self.demand

    @property
    def has_gaps(self) -> bool:
        """Whether ids had gaps, so that the demand by ids differs."""
        return bool(self.gapped.any())

    @property
    def tokens(self) -> int:
        """Consumed tokens: f(0)."""
        return int(self.lengths @ np.arange(self.max_len + 1)) + int(self.gapped[0])

    def share(self, low: int, high: int) -> float:
        """Return the share of the position mass at low <= i <= high; 0 when nothing was counted."""
        frequency = self.frequency()
        total = int(frequency.sum())
        return int(frequency[low : high + 1].sum()) / total if total else 0.0

    def __add__(self, other: PositionCounts) -> PositionCounts:
        """Add two counters of the same max_len."""
        if self.max_len != other.max_len:
            raise DataError(f"max_len={other.max_len}: must equal {self.max_len} to be added")
        total = copy(self)
        for name in COUNTED:
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def __eq__(self, other: object) -> bool:
        """Compare what was counted."""
        if not isinstance(other, PositionCounts):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in COUNTED)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> Row:
        return {"max_len": self.max_len, **{name: getattr(self, name).tolist() for name in COUNTED}}

    @classmethod
    def from_dict(cls, state: Row) -> PositionCounts:
        """Restore the counter from the result of `to_dict`."""
        counts = cls(state["max_len"])
        for name in COUNTED:
            setattr(counts, name, np.asarray(state[name], dtype=np.int64))
        return counts
