"""Evidence methods: their base class, the layout of a pack in which they look, and the lab's own method.

A target is the token that follows an index of a run. So the tokens of a run and the target of its last index make one
sequence, and the target of index i is at index i + 1 of it. Its evidence distance d says that the evidence is the token
at index i + 1 - d, which attention sees from index i at relative position d - 1. A target without evidence has d = 0.

    run        a b c a | targets b c a b        sequence   a b c a b
    distances of the targets b c a b, evidence an earlier copy of two tokens     0 0 3 3

repeat: an earlier copy of a block of tokens that contains the target.

    d(p) = min over blocks B of n tokens with p in B of the least d >= 1 so that the sequence has B d tokens earlier

Both copies lie in the same run, so that attention sees the token copied. A block may end after its target: the first
token of a repeated phrase has evidence too. For n = 2 and the sequence a b c a b the targets at indices 1 .. 4 have
d = 0 0 3 3: a b is repeated 3 tokens later.

Source: a repeated n-gram as the sign of copying, arXiv:2511.05743, section 3 (there n = 1 to 3 before the target); the
block that may end after the target is this lab's own, since a repeated number or phrase is one question to the model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from lab.core.schema import Method
from lab.core.types import IGNORE, IntArray


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of packed runs, end to end.

    Shapes: `tokens`, one more for each run, -1 if its last index has no target; `ends`, where the sequence of each
        token ends; `targets`, the index of each target of the runs, int64.
    """

    tokens: IntArray
    ends: IntArray
    targets: IntArray

    @classmethod
    def of(cls, tokens: IntArray, targets: IntArray, lengths: Sequence[int]) -> Sequences:
        """Lay out the runs of a pack."""
        # The sequence of a run has one more element than the run, so that run k moves by k.
        sizes = np.asarray(lengths, dtype=np.int64)
        stops = np.cumsum(sizes)
        lasts = targets[stops - 1]
        out = np.insert(tokens[: stops[-1]], stops, np.where(lasts == IGNORE, -1, lasts))
        numbers = np.arange(len(sizes))
        ends = np.repeat(stops + numbers + (lasts != IGNORE), sizes + 1)
        return cls(out, ends, np.arange(1, stops[-1] + 1) + np.repeat(numbers, sizes))


def in_ids(distances: IntArray, ids: IntArray) -> IntArray:
    """Convert distances in tokens to distances in ids, as far apart as attention sees query and evidence, plus 1.

    Shapes: int64 (tokens,) both -> int64 (tokens,).
    Example:
        >>> in_ids(np.array([0, 0, 2, 3]), np.array([0, 1, 7, 8])).tolist()  # the last sees the evidence at id 1
        [0, 0, 7, 8]
    """
    # Without evidence the index would be that of the next token, beyond the end for the last one.
    indices = np.where(distances > 0, np.arange(len(ids)) + 1 - distances, 0)
    return np.where(distances > 0, ids - ids[indices] + 1, 0)


class Evidence(Method):
    """The parameters of an evidence method, and the distances that it finds."""

    def distances(self, tokens: IntArray, targets: IntArray, lengths: Sequence[int]) -> IntArray:
        """Find the evidence distance of each target of packed runs, in tokens; 0 where there is none.

        Shapes: int64 (tokens,), padding after the runs included -> int64 (tokens,).
        """
        out = np.zeros(len(tokens), dtype=np.int64)
        sequences = Sequences.of(tokens, targets, lengths)
        out[: len(sequences.targets)] = self.nearest_copy(sequences)[sequences.targets]
        return out

    @abstractmethod
    def nearest_copy(self, sequences: Sequences) -> IntArray:
        """Find the distance from each index of the sequences to its evidence; 0 where there is none."""


class Repeat(Evidence):
    """An earlier copy of a block of tokens that contains the target."""

    method: Literal["repeat"] = "repeat"
    tokens: Annotated[int, Ge(2), Le(16)] = 3
    """Tokens n of a block."""

    def nearest_copy(self, sequences: Sequences) -> IntArray:
        """Find the nearest earlier copy of each block by sorting the blocks of all runs at once.

        Example:
            >>> run = np.array([7, 8, 9, 7])
            >>> Repeat(tokens=2).distances(run, np.array([8, 9, 7, 8]), [4]).tolist()
            [0, 0, 3, 3]
        """
        n = self.tokens
        size = len(sequences.tokens)
        if size < n:
            return np.zeros(size, dtype=np.int64)
        codes = block_codes(sequences.tokens + 1, n)
        order = np.argsort(codes, kind="stable")  # equal blocks side by side, in order of index
        again = np.flatnonzero(np.diff(codes[order]) == 0)  # the block before is its nearest earlier copy
        copies, indices = order[again], order[again + 1]
        ends = sequences.ends[indices]
        inside = (sequences.ends[copies] == ends) & (indices + n <= ends)  # both in one run
        # a target takes the least distance of the n blocks that contain it, those that begin up to n - 1 tokens before
        nearest = np.full(size + n - 1, size, dtype=np.int32)  # by first token of a block, n - 1 entries later
        nearest[indices + n - 1] = np.where(inside, indices - copies, size)
        least = nearest[n - 1 :].copy()
        for ahead in range(1, n):
            np.minimum(least, nearest[n - 1 - ahead : -ahead], out=least)
        least[least == size] = 0
        return least.astype(np.int64)


def block_codes(tokens: IntArray, n: int) -> IntArray:
    """Number the blocks of n tokens so that equal ones, and no others, have the same number.

    Shapes: (size,), none negative -> (size - n + 1,).
    """
    codes = tokens
    width = int(tokens.max()) + 1
    bound = width  # codes are less
    for ahead in range(1, n):
        if bound * width >= 2**63:
            codes = np.unique(codes, return_inverse=True)[1]
            bound = len(codes)
        codes = codes[:-1] * width
        codes += tokens[ahead:]
        bound *= width
    return codes
