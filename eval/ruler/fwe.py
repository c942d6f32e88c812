"""Aggregation: the three coded words that occur most often in a text whose word frequencies follow a zeta law.

    count(k) = floor(N k^-alpha / zeta(alpha))        k = 1, 2, ... rank of a word, N length of the text in words

Rank 1 is noise, written `...`; the answer is ranks 2, 3 and 4. Coded words are CODED letters drawn at random, one of
them for every TOKENS_PER_WORD tokens of the length. Unlike in RULER, N is never one at which ranks 4 and 5 occur
equally often (some below 73 words), and what room is left is filled with more dots.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/freq_words_extraction.py.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import zeta

from eval.engine.cases import Draft, Turn, Writer
from eval.engine.words import Distinct, draw_letters
from eval.ruler import wording
from eval.ruler.sources import Sources

CODED = 6
TOKENS_PER_WORD = 50
DOTS = "..."
ASKED = 3


@dataclass(frozen=True, kw_only=True)
class FrequentWords:
    """Parameters of frequent words extraction."""

    alpha: float = 2.0

    def draft(self, writer: Writer, sources: Sources, turn: Turn) -> Draft:
        """Draw the coded words and their order."""
        ranks = max(ASKED + 2, turn.length // TOKENS_PER_WORD)
        coded = Distinct(partial(draw_letters, turn.rng, string.ascii_lowercase, CODED))
        order = int(turn.rng.integers(2**62))
        clear = self.clear_lengths()

        def n_words(units: int) -> int:
            return clear[units] if units < len(clear) else clear[-1] + 1 + units - len(clear)

        def prompt(units: int, dots: int = 0) -> str:
            words = [DOTS, *coded.first(ranks - 1)]
            counts = self.counts(n_words(units), ranks)
            entries = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
            places = np.argsort(np.random.default_rng(order).random(len(entries)))
            text = " ".join([entries[place] for place in places] + [DOTS] * dots)
            return wording.FREQUENT_WORDS.format(context=text)

        return Draft(
            compose=prompt,
            least=0,
            answers=tuple(coded.first(ASKED)),
            facts=lambda units: {
                "coded": coded.first(ranks - 1)[: ASKED + 1],
                "counts": self.counts(n_words(units), ranks)[: ASKED + 2],
            },
            refine=lambda units: partial(prompt, units),
        )

    def counts(self, n_words: int, ranks: int) -> list[int]:
        """Count how often the words of the first ranks occur in a text of `n_words`.

        Example:
            >>> FrequentWords().counts(100, 6)
            [60, 15, 6, 3, 2, 1]
        """
        shares = np.arange(1, ranks + 1) ** -float(self.alpha) / zeta(self.alpha)
        return [int(count) for count in np.floor(n_words * shares)]

    def clear_lengths(self) -> list[int]:
        """List the numbers of words at which the last asked rank is ahead of the next, up to where it always is."""
        last, following = (rank**-self.alpha / zeta(self.alpha) for rank in (ASKED + 1, ASKED + 2))
        always = int(np.ceil(1 / (last - following)))
        return [n for n in range(always + 1) if self.counts(n, ASKED + 2)[ASKED] > self.counts(n, ASKED + 2)[-1]]
