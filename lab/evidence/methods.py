"""Evidence methods: their base class, the layout of a pack in which they look, and the three methods.

A target is the token that follows an index of a run. So the tokens of a run and the target of its last index make one
sequence, and the target of index i is at place i + 1 of it. Its evidence distance d says that the evidence is the token
at place i + 1 - d, which attention sees from index i at relative position d - 1. A target without evidence has d = 0.

    run        a b c a | targets b c a b        sequence   a b c a b
    distances of the targets b c a b, evidence an earlier copy of two tokens     0 0 3 3

repeat: an earlier copy of a block of tokens that contains the target.

    d(p) = min over blocks B of n tokens with p in B of the least d >= 1 so that the sequence has B at d places earlier

Both copies lie in the same run, so that attention sees the token copied. A block may end after its target: the first
token of a repeated phrase has evidence too. For n = 2 and the sequence a b c a b the targets at places 1 .. 4 have
d = 0 0 3 3: a b is repeated 3 places later.

Source: a repeated n-gram as the sign of copying, arXiv:2511.05743, section 3 (there n = 1 to 3 before the target); the
block that may end after the target is this lab's own, since a repeated number or phrase is one question to the model.

suffix: the earlier copy of the target whose preceding tokens agree longest with the target's own, by induction.

    m(q, p) = number of tokens before q that equal those before p, one by one backwards, up to LONGEST
    d(p)    = p - q, for the q < p with x_q = x_p and m(q, p) >= least of largest m(q, p), the nearest among equals

Both copies lie in the same run. The first token of a repeated phrase has no evidence, since what precedes it differs;
repeat gives it some. In the sequence a b c d b c e a b c the last c has copies 4 and 7 places earlier. One
token before the nearer copy matches, two before the other one, so that d = 7.

Source: induction heads copy what followed an earlier copy of the tokens at hand; arXiv:2511.05743 takes the loss off
the tokens that they predict. Which copy counts where there are several is the choice of this lab: the longest match.
`least` is 1 by default, which agrees best with what the generated corpus copies (docs/methods.md).
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

NONE = -1  # at the end of the sequence of a run whose last index has no target
WORD = 2**62  # what a code and a place in one number stay below
# Tokens. Longer matches count as equally long, which bounds the cost of repeated documents.
LONGEST = 64


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

    def distances(self, tokens: IntArray, targets: IntArray, lengths: Sequence[int]) -> IntArray:
        """Find the evidence distance of each target of packed runs, in tokens; 0 where there is none.

        Shapes: int64 (tokens,), padding after the runs included -> int64 (tokens,).
        """
        out = np.zeros(len(tokens), dtype=np.int64)
        laid = Sequences.of(tokens, targets, lengths)
        out[: len(laid.targets)] = self.nearest_copy(laid)[laid.targets]
        return out

    @abstractmethod
    def nearest_copy(self, laid: Sequences) -> IntArray:
        """Find the distance from each place of the sequences to its evidence; 0 where there is none."""


@dataclass(frozen=True, kw_only=True)
class Repeat(Evidence):
    """An earlier copy of a block of tokens that contains the target."""

    method: Literal["repeat"] = "repeat"
    tokens: Annotated[int, Ge(2), Le(16)] = 3
    """Tokens n of a block."""

    def nearest_copy(self, laid: Sequences) -> IntArray:
        """Find the nearest earlier copy of each block by sorting the blocks of all runs at once.

        Example:
            >>> run = np.array([7, 8, 9, 7])
            >>> Repeat(tokens=2).distances(run, np.array([8, 9, 7, 8]), [4]).tolist()
            [0, 0, 3, 3]
        """
        n = self.tokens
        size = len(laid.tokens)
        if size < n:
            return np.zeros(size, dtype=np.int64)
        # A number has a block's code above its place: one sort brings equal blocks side by side, in order of place
        both = block_codes(laid.tokens + 1, n)
        bits = size.bit_length()
        both <<= bits
        both |= np.arange(len(both))
        both.sort()  # by code, then by place
        # Neighbours have equal codes if they differ in the bits of the place alone.
        again = np.flatnonzero(both[1:] ^ both[:-1] < 1 << bits)  # the block before is its nearest earlier copy
        copies, places = both[again] & (1 << bits) - 1, both[again + 1] & (1 << bits) - 1
        ends = laid.ends[places]
        inside = (laid.ends[copies] == ends) & (places + n <= ends)  # both in one run
        # a target takes the least distance of the n blocks that contain it, those that begin up to n - 1 places before
        nearest = np.full(size + n - 1, size, dtype=np.int32)  # by first token of a block, n - 1 entries later
        nearest[places + n - 1] = np.where(inside, places - copies, size)
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
        if bound * width >= WORD >> len(tokens).bit_length():  # then ranks take the place of codes
            codes = np.unique(codes, return_inverse=True)[1]
            bound = len(codes)
        codes = codes[:-1] * width
        codes += tokens[ahead:]
        bound *= width
    return codes


@dataclass(frozen=True, kw_only=True)
class Suffix(Evidence):
    """The earlier copy of the target with the longest match of the tokens before it."""

    method: Literal["suffix"] = "suffix"
    least: Annotated[int, Ge(1), Le(LONGEST)] = 1
    """Fewest tokens before the target that must match."""

    def nearest_copy(self, laid: Sequences) -> IntArray:
        """Lengthen the blocks that end at each place by one token at a time, as long as earlier copies remain.

        Example:
            >>> run = np.array([1, 2, 3, 4, 2, 3, 5, 1, 2])
            >>> Suffix(least=2).distances(run, np.array([2, 3, 4, 2, 3, 5, 1, 2, 3]), [9]).tolist()
            [0, 0, 0, 0, 0, 0, 0, 0, 7]
        """
        distances: IntArray = np.zeros(len(laid.tokens), dtype=np.int64)
        width = int(laid.tokens.max()) + 1
        bits = len(laid.tokens).bit_length()
        places: IntArray = np.flatnonzero(laid.tokens >= 0)
        codes: IntArray = laid.begins[places] * width + laid.tokens[places]  # equal for equal blocks of one run
        for matched in range(LONGEST + 1):
            if matched:
                # cumsum has renumbered the codes below, so that they stay small enough to be multiplied again
                codes = codes * width + laid.tokens[places - matched]
            both = np.sort(codes << bits | places)  # by block, then by place
            places = both & (1 << bits) - 1
            again = np.zeros(len(both) + 1, dtype=np.bool_)  # whether a place has the block of the one before
            np.less(both[1:] ^ both[:-1], 1 << bits, out=again[1:-1])
            if matched >= self.least:
                later = np.flatnonzero(again)
                distances[places[later]] = places[later] - places[later - 1]
            repeated = (again[1:] | again[:-1]) & (places - matched > laid.begins[places])  # blocks that have a copy
            codes = np.cumsum(~again[:-1], dtype=np.int64)[repeated]
            places = places[repeated]
            if not len(places):
                break
        return distances
