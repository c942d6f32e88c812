"""The base class of evidence methods, the layout of a pack in which they look, and the method that is stored.

A target is the token that follows an index of a run. So the tokens of a run and the target of its last index make one
sequence, and the target of index i is at place i + 1 of it. Its evidence distance d says that the evidence is the token
at place i + 1 - d, which attention sees from index i at relative position d - 1. A target without evidence has d = 0.

    run        a b c a | targets b c a b        sequence   a b c a b
    distances of the targets b c a b, evidence an earlier copy of two tokens     0 0 3 3

One method is computed once for whole documents, and stored next to the shards (lab.data.sidecars).

asked: what each word of a generated corpus was made to copy. The generator of lab.data.synthetic knows the origin of
every word: a word of filler when it is sampled, a number when it is stated. A repeated phrase, a quote or an answer
copies words. The evidence of a token of such a word is the same token in the latest earlier word of that origin, in the
same section. Equal words that were sampled separately are no evidence of each other. These labels judge repeat and
suffix (lab.evidence.repeat), which see the tokens alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lab.core.arrays import IGNORE, IntArray
from lab.core.errors import ConfigError
from lab.core.schema import Method

NONE = -1  # at the end of the sequence of a run whose last index has no target


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of packed runs, end to end.

    Shapes: `tokens`, one more for each run, NONE where there is none; `begins` and `ends`, where the sequence of each
        token begins and ends; `targets`, the place of each target of the runs, int64.
    """

    tokens: IntArray
    begins: IntArray
    ends: IntArray
    targets: IntArray

    @classmethod
    def of(cls, tokens: IntArray, targets: IntArray, lengths: Sequence[int]) -> Sequences:
        """Lay out the runs of a pack."""
        # The sequence of a run has one more element than the run, so that run k moves by k places.
        sizes = np.asarray(lengths, dtype=np.int64)
        stops = np.cumsum(sizes)
        lasts = targets[stops - 1]
        out = np.insert(tokens[: stops[-1]], stops, np.where(lasts == IGNORE, NONE, lasts))
        numbers = np.arange(len(sizes))
        begins = np.repeat(stops - sizes + numbers, sizes + 1)
        ends = np.repeat(stops + numbers + (lasts != IGNORE), sizes + 1)
        return cls(out, begins, ends, np.arange(1, stops[-1] + 1) + np.repeat(numbers, sizes))


def in_ids(distances: IntArray, ids: IntArray) -> IntArray:
    """Convert distances in tokens to distances in ids, as far apart as attention sees query and evidence, plus 1.

    Shapes: int64 (tokens,) both -> int64 (tokens,).
    Example:
        >>> in_ids(np.array([0, 0, 2, 3]), np.array([0, 1, 7, 8])).tolist()  # the last sees the evidence at id 1
        [0, 0, 7, 8]
    """
    # Without evidence the index would be that of the next token, beyond the end for the last one.
    places = np.where(distances > 0, np.arange(len(ids)) + 1 - distances, 0)
    return np.where(distances > 0, ids - ids[places] + 1, 0)


@dataclass(frozen=True, kw_only=True)
class Evidence(Method):
    """The parameters of an evidence method, and the distances that it finds."""

    def distances(
        self, tokens: IntArray, targets: IntArray, lengths: Sequence[int], stored: np.typing.NDArray[Any] | None = None
    ) -> IntArray:
        """Find the evidence distance of each target of packed runs, in tokens; 0 where there is none.

        Distances that are `stored` are kept where they lie within the run.

        Shapes: int64 (tokens,), padding after the runs included -> int64 (tokens,).
        """
        out = np.zeros(len(tokens), dtype=np.int64)
        if stored is not None:
            # The farthest evidence within a run is its first token: a document that was cut into several runs has
            # stored distances into an earlier one.
            out[: sum(lengths)] = np.concatenate([np.arange(1, length + 1) for length in lengths])
            return np.where(stored <= out, stored, 0).astype(np.int64)
        laid = Sequences.of(tokens, targets, lengths)
        out[: len(laid.targets)] = self.nearest_copy(laid)[laid.targets]
        return out

    @abstractmethod
    def nearest_copy(self, laid: Sequences) -> IntArray:
        """Find the distance from each place of the sequences to its evidence; 0 where there is none."""


UNLABELLED = "needs the labels of data.corpus.name: synthetic, not upsampled"


@dataclass(frozen=True, kw_only=True)
class Asked(Evidence):
    """The word that a generated corpus copied."""

    method: Literal["asked"] = "asked"

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject a corpus without labels."""
        if not run.data.has_labels:
            yield run.fault("evidence.method", f"{UNLABELLED}; use repeat or suffix")

    def nearest_copy(self, laid: Sequences) -> IntArray:
        """Find nothing: distances are stored for training tokens alone.

        Raises: ConfigError.
        """
        rule = "is stored for training tokens alone, and these are others"
        raise ConfigError(f"evidence.method={self.method}: {rule}; use repeat or suffix")
