"""LongRecipe's position index transformation: ids break between sentences only, and skip at random there.

    p = pos(k) + j       for token j of sentence k, ids in tokens, 0 <= j < |s_k|
    pos(0) = 0,     pos(k) = pos(k - 1) + |s_(k-1)| + g_k,     g_k >= 0,     sum of g_k <= T - n

n tokens in N sentences leave T - n ids free. N of T - n + N slots are chosen in increasing order, the first of them
slot 0; the k-th sentence goes into the k-th slot, a slot without a sentence is one free id, and the slots are
flattened:

    pos(k) = slot(k) + sum over j < k of (|s_j| - 1)

The last id is at most T - 1, and each of the C(T - n + N - 1, N - 1) placements is equally likely: every g_k is
(T - n) / N in the mean. At n = 6, N = 3 and T = 12, with slots 0, 3 and 7 of 9:

    slots     abc   . . de  . . . f  .
    ids       0 1 2 . . 5 6 . . . 10 .

Source: arXiv:2409.00509, section 4.2 and Algorithm 1. Eq. 6 has a + 1 that would skip an id even where g = 0,
contrary to the text above it. Algorithm 1 has T slots, which overflow T as soon as a sentence has two tokens. Here M,
its largest g, is what the window leaves. In the released code
- N slots are drawn from all, and the smallest is replaced by 0, which biases the others towards the end of the window;
- token index 0 is treated as an empty slot; its id is restored just before the second id, which joins a first sentence
  of one token to the second sentence;
- a first stretch, as long as a first chunk of PoSE, is overwritten with ids 0, 1, ... .
None of the three is done here.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lab.skip.base import IntArray, Skip

RANDOM = "random"  # the selection of any sentences


@dataclass(frozen=True, kw_only=True)
class LongRecipe(Skip):
    """The parameters of the position index transformation, and of the selection of sentences before it."""

    needs_sentences: ClassVar[bool] = True
    method: Literal["longrecipe"] = "longrecipe"
    selection: str | None = None
    """Result of probe-lab impact: samples are data.window tokens of the sentences of target_len tokens that
    hold one of its token types; random takes any sentences. Left out, samples are whole windows of the text."""

    @property
    def by_types(self) -> bool:
        return self.selection not in (None, RANDOM)

    @property
    def selects(self) -> bool:
        return self.selection is not None

    def position_ids(
        self, n_tokens: int, sentence_lengths: IntArray | None, generator: np.random.Generator
    ) -> IntArray:
        """Choose the slots of the sentences and flatten them: sentence_lengths int64 (N,) -> int64 (n_tokens,).

        Example:
            >>> LongRecipe(target_len=9).position_ids(6, np.array([6]), np.random.default_rng(0)).tolist()
            [0, 1, 2, 3, 4, 5]
        """
        assert sentence_lengths is not None, "skip_positions refuses a sample without sentences"
        others = len(sentence_lengths) - 1
        chosen = generator.choice(self.target_len - n_tokens + others, others, replace=False, shuffle=False)
        return flattened(sentence_lengths, np.append(0, np.sort(chosen) + 1))


def flattened(sentence_lengths: IntArray, slots: IntArray) -> IntArray:
    """Compute the ids of sentences in slots; every free slot takes one id.

    Shapes: (N,), (N,) -> int64 (n_tokens,).
    Example:
        >>> flattened(np.array([3, 2, 1]), np.array([0, 3, 7])).tolist()
        [0, 1, 2, 5, 6, 10]
    """
    free = slots - np.arange(len(slots))  # ids skipped before each sentence
    return np.arange(sentence_lengths.sum(), dtype=np.int64) + np.repeat(free, sentence_lengths)
