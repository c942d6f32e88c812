"""Aggregation: the words that occur most often, in a shuffled list (cwe) and in a coded text (fwe).

Common words. Ten common words occur `common_repeats` times each, all others `other_repeats` times. The list grows by
other words. A worked example, a shorter list with its answer, comes first where there is room for both. Words are
English as long as there are enough, then made up. With `--words=wonderwords` they are drawn from RULER's 8,166, of
which some are part of others; of the lab's own 1,332 none is. Ours are the made-up words, where RULER stops (until
2025-05) or takes a second list (since), and a new order in every test.

From LONG tokens on: 30 and 3 times, an example of 40 words, 10 and 3 times. Shorter, as in RULER: 6 and 1 times, an
example of 20 words, 3 and 1 times.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/common_words_extraction.py,
commit f682453.

Frequent words. A text whose word frequencies follow a zeta law; the three most frequent coded words are asked for:

    count(k) = floor(N k^-alpha / zeta(alpha))        k = 1, 2, ... rank of a word, N length of the text in words

Rank 1 is noise, written `...`; the answer is ranks 2, 3 and 4. Coded words are CODED letters drawn at random, one of
them for every TOKENS_PER_WORD tokens of the length. Unlike in RULER, N is never one at which ranks 4 and 5 occur
equally often (some below 73 words), and what room is left is filled with more dots.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/freq_words_extraction.py.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import zeta

from eval.engine.cases import Distinct, Draft, Turn, Writer, draw_letters, draw_made_up, english
from eval.ruler import wording
from eval.ruler.sources import Sources

LONG = 4096
ALL_EXAMPLE_WORDS = 40  # set aside at every length, so that the words of a test do not depend on it
CODED = 6
TOKENS_PER_WORD = 50
DOTS = "..."
ASKED = 3


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How often words occur in a list and in the example's."""

    common_repeats: int
    other_repeats: int
    example_words: int
    example_common_repeats: int
    example_other_repeats: int


@dataclass(frozen=True, kw_only=True)
class CommonWords:
    """Parameters of common words extraction."""

    common: int = 10
    long: Repeats = Repeats(
        common_repeats=30, other_repeats=3, example_words=40, example_common_repeats=10, example_other_repeats=3
    )
    short: Repeats = Repeats(
        common_repeats=6, other_repeats=1, example_words=20, example_common_repeats=3, example_other_repeats=1
    )

    def draft(self, writer: Writer, sources: Sources, turn: Turn) -> Draft:
        """Draw the words and their order."""
        repeats = self.long if turn.length >= LONG else self.short
        pool = sources.words or [word for words in english().values() for word in words]
        words = Distinct(partial(draw_made_up, turn.rng), [pool[k] for k in turn.rng.permutation(len(pool))])
        orders = [int(seed) for seed in turn.rng.integers(2**62, size=2)]
        set_aside, n_english = ALL_EXAMPLE_WORDS + self.common, len(pool)
        common = words.first(set_aside)[ALL_EXAMPLE_WORDS:]
        shown = words.words[: repeats.example_words]
        example = (
            list_words(shown, self.common, repeats.example_common_repeats, repeats.example_other_repeats, orders[0])
            + "".join(f" {number}. {word}" for number, word in enumerate(shown[: self.common], start=1))
            + "\n"
        )

        def main(others: int) -> str:
            used = words.first(set_aside + others)[ALL_EXAMPLE_WORDS:]
            return list_words(used, self.common, repeats.common_repeats, repeats.other_repeats, orders[1])

        fits = writer.count(example + main(self.common)) <= turn.room
        return Draft(
            compose=lambda others: (example if fits else "") + main(others),
            least=self.common,
            answers=tuple(common),
            facts=lambda others: {
                "common": common,
                "repeats": [repeats.common_repeats, repeats.other_repeats],
                "words": self.common + others,
                "made_up_words": max(0, set_aside + others - n_english),
                "example": fits,
            },
        )


def list_words(words: Sequence[str], common: int, common_repeats: int, other_repeats: int, order: int) -> str:
    r"""Write the task with a shuffled list; longer lists with the same seed keep the order of what they share.

    Example:
        >>> list_words(["ox", "hen"], 1, 3, 1, 5).split("\n")[1]
        '1. hen 2. ox 3. ox 4. ox'
    """
    entries = [word for word in words[:common] for _ in range(common_repeats)]
    entries += [word for word in words[common:] for _ in range(other_repeats)]
    places = np.argsort(np.random.default_rng(order).random(len(entries)))
    listed = " ".join(f"{number}. {entries[place]}" for number, place in enumerate(places, start=1))
    return wording.COMMON_WORDS.format(context=listed)


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
