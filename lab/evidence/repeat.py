"""Evidence by repetition: an earlier copy of a block of tokens that contains the target.

    d(p) = min over blocks B of n tokens with p in B of the least d >= 1 so that the sequence has B at d places earlier

Both copies lie in the same run, so that attention sees the token copied. A block may end after its target: the first
token of a repeated phrase has evidence too. For n = 2 and the sequence a b c a b the targets at places 1 .. 4 have
d = 0 0 3 3: a b is repeated 3 places later.

Source: a repeated n-gram as the sign of copying, arXiv:2511.05743, section 3 (there n = 1 to 3 before the target); the
block that may end after the target is this lab's own, since a repeated number or phrase is one question to the model.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from lab.evidence.base import Evidence, IntArray, Sequences

WORD = 2**62  # what a code and a place in one number stay below


@dataclass(frozen=True, kw_only=True)
class Repeat(Evidence):
    """An earlier copy of a block of tokens that contains the target."""

    method: Literal["repeat"] = "repeat"
    tokens: Annotated[int, Ge(2), Le(16)] = 3
    """Tokens n of a block."""

    def nearest(self, laid: Sequences) -> IntArray:
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
        # a number holds a block's code above its place: one sort brings equal blocks side by side, in order of place
        both = block_codes(laid.tokens + 1, n)
        bits = size.bit_length()
        both <<= bits
        both |= np.arange(len(both))
        both.sort()  # by code, then by place
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
