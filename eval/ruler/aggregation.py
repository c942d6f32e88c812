"""Aggregation: the words that occur most often, in a shuffled list (cwe) and in a coded text (fwe).

Common words. Ten common words occur more often than all others. The list grows by other words. A worked example, a
shorter list with its answer, comes first where there is room for both. Words are English as long as there are enough,
then made up. With `--words=wonderwords` they are drawn from RULER's 8,166, of which some are part of others. Of the
lab's own 1,332 none is part of another. Ours are the made-up words, where RULER stops (until 2025-05) or takes a second
list (since), and a new order in every test.

From LONG tokens on: 30 and 3 times, an example of 40 words, 10 and 3 times. Shorter, as in RULER: 6 and 1 times, an
example of 20 words, 3 and 1 times.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/common_words_extraction.py,
commit f682453.

Frequent words. A text whose word frequencies follow a zeta law; the three most frequent coded words are asked for:

    count(k) = floor(N k^-ALPHA / zeta(ALPHA))        k = 1, 2, ... rank of a word, N length of the text in words

Rank 1 is noise, written `...`; the answer is ranks 2, 3 and 4. Coded words are CODED letters drawn at random, one of
them for every TOKENS_PER_WORD tokens of the length. Unlike in RULER, N is never one at which ranks 4 and 5 occur
equally often (some below 73 words). More dots fill what room is left.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/freq_words_extraction.py.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.special import zeta

from eval.engine.cases import Distinct, Draft, Turn, Writer, draw_letters, draw_made_up, english
from eval.ruler.sources import Sources, shuffled

# The wording is verbatim from NVIDIA/RULER, scripts/data/synthetic/constants.py (Apache 2.0).
COMMON_WORDS = (
    "\x02Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?\x03 Answer: The top "
    "10 words that appear most often in the list are:"
)
FREQUENT_WORDS = (
    "\x02Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What "
    "are the three most frequently appeared words in the above coded text?\x03 Answer: According to the coded text "
    "above, the three most frequently appeared words are:"
)
COMMON = 10
LONG = 4096
ALL_EXAMPLE_WORDS = 40  # set aside at every length, so that the words of a test do not depend on it
ALPHA = 2.0
CODED = 6
TOKENS_PER_WORD = 50
DOTS = "..."
ASKED = 3


def common_words(writer: Writer, sources: Sources, turn: Turn) -> Draft:
    """Draw the words and their order."""
    # repeats of common and of other words, in the test and in the example, and the example's words
    repeats, example_repeats, n_shown = ((30, 3), (10, 3), 40) if turn.length >= LONG else ((6, 1), (3, 1), 20)
    pool = sources["words"] or [word for words in english().values() for word in words]
    words = Distinct(partial(draw_made_up, turn.rng), [pool[k] for k in turn.rng.permutation(len(pool))])
    orders = [int(seed) for seed in turn.rng.integers(2**62, size=2)]
    shown = words.words[:n_shown]
    example = list_words(shown, COMMON, *example_repeats, orders[0])
    example += "".join(f" {number}. {word}" for number, word in enumerate(shown[:COMMON], start=1)) + "\n"

    def main(others: int) -> str:
        listed = words.first(ALL_EXAMPLE_WORDS + COMMON + others)[ALL_EXAMPLE_WORDS:]
        return list_words(listed, COMMON, *repeats, orders[1])

    begin = example if writer.count(example + main(COMMON)) <= turn.room else ""
    answers = tuple(words.words[ALL_EXAMPLE_WORDS : ALL_EXAMPLE_WORDS + COMMON])
    return Draft(compose=lambda others: begin + main(others), least=COMMON, answers=answers)


def list_words(words: Sequence[str], common: int, common_repeats: int, other_repeats: int, order: int) -> str:
    r"""Write the task with a shuffled list; longer lists with the same seed keep the order of what they share.

    Example:
        >>> list_words(["ox", "hen"], 1, 3, 1, 5).split("\n")[1]
        '1. hen 2. ox 3. ox 4. ox'
    """
    entries = np.repeat(words, [common_repeats] * common + [other_repeats] * (len(words) - common))
    listed = " ".join(f"{number}. {word}" for number, word in enumerate(shuffled(entries, order), start=1))
    return COMMON_WORDS.format(context=listed)


def frequent_words(_: Writer, __: Sources, turn: Turn) -> Draft:
    """Draw the coded words and their order."""
    ranks = max(ASKED + 2, turn.length // TOKENS_PER_WORD)
    coded = Distinct(partial(draw_letters, turn.rng, string.ascii_lowercase, CODED))
    order = int(turn.rng.integers(2**62))
    # the numbers of words at which the last asked rank is ahead of the next, up to where it always is
    last, following = (rank**-ALPHA / zeta(ALPHA) for rank in (ASKED + 1, ASKED + 2))
    ahead = [(n, counts(n, ASKED + 2)) for n in range(int(np.ceil(1 / (last - following))) + 1)]
    clear = [n for n, found in ahead if found[ASKED] > found[-1]]

    def prompt(units: int, dots: int = 0) -> str:
        words = [DOTS, *coded.first(ranks - 1)]
        n_words = clear[units] if units < len(clear) else clear[-1] + 1 + units - len(clear)
        entries = shuffled(np.repeat(words, counts(n_words, ranks)), order)
        return FREQUENT_WORDS.format(context=" ".join(entries + [DOTS] * dots))

    return Draft(
        compose=prompt, least=0, answers=tuple(coded.first(ASKED)), refine=lambda units: partial(prompt, units)
    )


def counts(n_words: int, ranks: int) -> list[int]:
    """Count how often the words of the first ranks occur in a text of `n_words`.

    Example:
        >>> counts(100, 6)
        [60, 15, 6, 3, 2, 1]
    """
    shares = np.arange(1, ranks + 1) ** -ALPHA / zeta(ALPHA)
    return [int(count) for count in np.floor(n_words * shares)]
