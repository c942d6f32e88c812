"""RPES (randomized positional encoding): the ids are a sorted random sample of those of the target window.

    p(0) < p(1) < ... < p(n - 1)      n of the T ids 0 .. T - 1 without replacement, ids in tokens

Every set of n ids is equally likely, C(T, n) of them; the first id need not be 0. At n = 6 and T = 12:

    tokens    0   1 2     3   4   5
    ids     . 1 . 3 4 . . 7 . 9 . 11

A run is a longest stretch of ids that rise by one. The id after a token's is taken with probability (n - 1) / T, the
last one included, so that there are n (1 - (n - 1) / T) runs on average, and the mean run length is

    T / (T - n + 1) = 1 / (1 - (n - 1) / T)       close to 1 / (1 - n / T): 1.43 tokens where n is 30% of T

Source: arXiv:2409.00509, section 5.1, which cites Ruoss et al. (2023). LongRecipe's code does the same.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lab.skip.base import IntArray, Skip


@dataclass(frozen=True, kw_only=True)
class Rpes(Skip):
    """The parameters of the randomized positional encoding scheme."""

    method: Literal["rpes"] = "rpes"

    def position_ids(
        self, n_tokens: int, sentence_lengths: IntArray | None, generator: np.random.Generator
    ) -> IntArray:
        """Choose ids at random and sort them; sentences are not used.

        Shapes: int64 (n_tokens,).
        Example:
            >>> Rpes(target_len=3).position_ids(3, None, np.random.default_rng(0)).tolist()
            [0, 1, 2]
        """
        chosen = generator.choice(self.target_len, n_tokens, replace=False, shuffle=False)
        return np.sort(chosen.astype(np.int64))
