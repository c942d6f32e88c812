"""Evidence by induction: the earlier copy of the target whose preceding tokens agree longest with the target's own.

    m(q, p) = number of tokens before q that equal those before p, one by one backwards, up to LONGEST
    d(p)    = p - q, for the q < p with x_q = x_p and m(q, p) >= least of largest m(q, p), the nearest among equals

Both copies lie in the same run. The first token of a repeated phrase has no evidence, since what precedes it differs;
lab.evidence.repeat gives it some. In the sequence a b c d b c e a b c the last c has copies 4 and 7 places earlier. One
token before the nearer copy matches, two before the farther one, so that d = 7.

Source: induction heads copy what followed an earlier copy of the tokens at hand; arXiv:2511.05743 takes the loss off
the tokens that they predict. Which copy counts where there are several is the choice of this lab: the longest match.
`least` is 1 by default, which agrees best with the labels of the generated corpus (docs/methods.md).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from lab.evidence.base import Evidence, IntArray, Sequences

LONGEST = 64  # tokens; matches of as many or more are equally long, which bounds the cost of repeated documents


@dataclass(frozen=True, kw_only=True)
class Suffix(Evidence):
    """The earlier copy of the target with the longest match of the tokens before it."""

    method: Literal["suffix"] = "suffix"
    least: Annotated[int, Ge(1), Le(LONGEST)] = 1
    """Fewest tokens before the target that must match."""

    def nearest(self, laid: Sequences) -> IntArray:
        """Lengthen the blocks that end at each place by one token at a time, as long as earlier copies remain.

        Example:
            >>> run = np.array([1, 2, 3, 4, 2, 3, 5, 1, 2])
            >>> Suffix(least=2).distances(run, np.array([2, 3, 4, 2, 3, 5, 1, 2, 3]), [9]).tolist()
            [0, 0, 0, 0, 0, 0, 0, 0, 7]
        """
        found: IntArray = np.zeros(len(laid.tokens), dtype=np.int64)
        width = int(laid.tokens.max()) + 1
        bits = len(laid.tokens).bit_length()
        places: IntArray = np.flatnonzero(laid.tokens >= 0)
        codes: IntArray = laid.begins[places] * width + laid.tokens[places]  # equal for equal blocks of one run
        for matched in range(LONGEST + 1):
            if matched:
                codes = codes * width + laid.tokens[places - matched]
            both = np.sort(codes << bits | places)  # by block, then by place
            places = both & (1 << bits) - 1
            again = np.zeros(len(both) + 1, dtype=np.bool_)  # whether a place has the block of the one before
            np.less(both[1:] ^ both[:-1], 1 << bits, out=again[1:-1])
            if matched >= self.least:
                later = np.flatnonzero(again)
                found[places[later]] = places[later] - places[later - 1]
            kept = (again[1:] | again[:-1]) & (places - matched > laid.begins[places])  # blocks that have a copy
            codes = np.cumsum(~again[:-1], dtype=np.int64)[kept]
            places = places[kept]
            if not len(places):
                break
        return found
