"""A seeded probe corpus: word-like filler, repeated phrases, quoted passages, and numbers queried later.

To pass a needle test a model must learn to copy by content over a distance. Here such copies are dense enough to be
learned within minutes. There are few distinct words. Phrases return inside a document, and passages are quoted word for
word. Documents state magic numbers, and end with the question of the needle test and its answer.

Document lengths, in tokens, are log-normal with median `median_tokens` and log standard deviation `log_std`. They do
not depend on the training window, so that runs of different windows train on the same documents. With a median of
NATURAL_MEDIAN windows and `log_std` NATURAL_LOG_STD they are distributed as SlimPajama's at 2048 (arXiv:2410.18745,
section 2, Figure 1a). At any window L, over 80% of the position mass is at i <= L/2 and under 5% at i >= 3L/4. About
20% of the segments have L/8 to L/4 tokens, about 20% have L. The defaults have this shape at a window of 192:
`median_tokens` is 0.26 * 192 = 49.92, and `section_tokens` 192.
"""

import itertools
import math
from functools import cache
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.random import Generator, default_rng

from lab.core.schema import Section, Seed, Share

# the wording of the four-needle test (arXiv:2410.18745, Table 5), which the probe shares
TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n\n"
)
NEEDLE = " One of the magic numbers is {number}."
QUESTION = "\n\nWhat are the magic numbers mentioned in the provided text?"
ANSWER_PREFIX = " The numbers are"
NATURAL_MEDIAN = 0.26  # windows; median document length of SlimPajama's shape
NATURAL_LOG_STD = 1.2  # of the logarithm of its document lengths
TASK_TOKENS = 31


class Synthetic(Section):
    """The generated probe corpus: filler, repeated phrases, quoted passages, numbers that are queried later."""

    name: Literal["synthetic"] = "synthetic"
    documents: Annotated[int, Ge(1), Le(10**9)] = 20_000
    """Number of documents."""
    words: Annotated[int, Ge(8), Le(10_000)] = 48
    """Distinct words of filler."""
    digits: Annotated[int, Ge(2), Le(9)] = 3
    """Digits of a magic number, also in the probe."""
    repeat_prob: Share = 0.7
    """Probability that a phrase repeats an earlier one of its document."""
    quote_prob: Share = 0.1
    """Probability that a sentence quotes an earlier passage of its document word for word."""
    number_prob: Share = 0.15
    """Probability that a word of filler is a number; repeats and quotes repeat it too."""
    question_prob: Share = 0.95
    """Probability that a long enough section states numbers and ends with the question and answer."""
    numbers: Annotated[int, Ge(1), Le(16)] = 4
    """Most numbers that a section states and asks for."""
    spread: Literal["log-uniform", "uniform"] = "log-uniform"
    """Distribution of the distances of numbers before their question."""
    order: Literal["stated", "reversed", "shuffled"] = "stated"
    """Order in which a question's answer gives the numbers; their texts and distances are those of any order."""
    asks: Literal["every", "last"] = "every"
    """Which sections of a document may ask for numbers."""
    section_tokens: Annotated[float, Ge(1), Le(2**24)] = 192.0
    """Longest section in tokens; repeats, quotes and questions reach back no further than their section."""
    median_tokens: Annotated[float, Ge(1), Le(2**20)] = 49.92
    """Median document length in tokens; SlimPajama's shape at a window of 192, and at any window of 0.26 times it."""
    log_std: Annotated[float, Gt(0), Le(3)] = NATURAL_LOG_STD
    """Standard deviation of the logarithm of the document length."""
    seed: Seed = 0
    """Seed of the documents; the run's own seed shuffles them."""

    def document(self, index: int) -> str:
        """Generate document `index`: sections of at most `section_tokens`, which end in a full stop."""
        rng = default_rng([self.seed, index])
        length = self.median_tokens * np.exp(rng.normal(0.0, self.log_std))
        n_sections = max(1, math.ceil(length / self.section_tokens))
        sections = []
        for k in range(n_sections):
            may_ask = k == n_sections - 1 or self.asks == "every"
            # A generator of its own, so that the order changes nothing else. A last 0 would not change its seed.
            order_rng = default_rng([self.seed, index, k + 1])
            section = self.section(rng, order_rng, length / n_sections, has_task=k == 0, may_ask=may_ask)
            sections.append(section)
        return "\n\n".join(sections)

    def section(self, rng: Generator, order_rng: Generator, length: float, has_task: bool, may_ask: bool) -> str:
        """Generate about `length` tokens of filler; if it may ask and has room, a question about numbers in it follows.

        At log-uniform distances before the question short ones are common and long ones rare, like dependencies in
        natural text.
        """
        # a number costs its digits and 8 tokens in its needle, and its digits, a space and a comma in the answer
        cost = 8 + 2 * self.digits + 2
        room = length - 17  # tokens of the question, the answer's first words and its full stop
        # the random number is taken in every section, so that all sections of a seed stay the same whatever may ask
        asks = rng.random() < self.question_prob and room > 2 * cost and may_ask
        if not asks:
            return join_sentences(self.sentences(rng, max(2, round(length))))
        numbers = sample_numbers(rng, min(self.numbers, int(room // cost) - 1), self.digits)
        room -= cost * len(numbers)
        has_task = has_task and room > 2 * TASK_TOKENS
        sentences = self.sentences(rng, max(2, round(room - TASK_TOKENS * has_task)))
        to_end = np.cumsum([0, *(len(sentence) for sentence in reversed(sentences))])  # tokens after each sentence
        if self.spread == "uniform":
            distances = rng.uniform(1.0, to_end[-1] + 1, len(numbers))
        else:
            distances = np.exp(rng.uniform(0.0, np.log(to_end[-1] + 1), len(numbers)))
        indices = np.sort(len(sentences) - np.searchsorted(to_end, distances - 1, side="left"))
        # from the last needle to the first: an insertion shifts the indices behind it alone
        for number, index in zip(reversed(numbers), indices[::-1], strict=True):
            sentences.insert(int(index), [NEEDLE.format(number=number)])
        if self.order == "reversed":
            numbers.reverse()
        elif self.order == "shuffled":
            order_rng.shuffle(numbers)
        task = TASK if has_task else ""
        return task + join_sentences(sentences) + QUESTION + ANSWER_PREFIX + answer(numbers)

    def filler(self, index: int, n_tokens: int) -> str:
        """Generate about `n_tokens` tokens of filler, without magic numbers or questions."""
        rng = default_rng([self.seed, index])
        return join_sentences(self.sentences(rng, n_tokens))

    def sentences(self, rng: Generator, n_tokens: int) -> list[list[str]]:
        """Generate filler sentences of about `n_tokens` words and stops together.

        Each is its words, with a leading space, and a stop.
        """
        text: list[str] = []  # all words so far, from which quotes are taken
        phrases: list[list[str]] = []
        out: list[list[str]] = []
        left = n_tokens
        while left > 1:
            sentence: list[str] = []
            if len(text) > 16 and rng.random() < self.quote_prob:
                size = int(rng.integers(8, 16))
                begin = int(rng.integers(0, len(text) - size))
                sentence = text[begin : begin + size]
            else:
                for _ in range(int(rng.integers(1, 4))):
                    if phrases and rng.random() < self.repeat_prob:
                        phrase = phrases[int(rng.integers(0, len(phrases)))]
                    else:
                        n_words = int(rng.integers(3, 7, endpoint=True))
                        words = lexicon(self.words)[rng.integers(0, self.words, n_words)].tolist()
                        for index in np.flatnonzero(rng.random(n_words) < self.number_prob):
                            words[index] = sample_numbers(rng, 1, self.digits)[0]
                        phrase = [f" {word}" for word in words]
                        phrases.append(phrase)
                    sentence = sentence + phrase
            # a number is a space and digits
            costs = np.cumsum([1 + self.digits * word[1:].isdigit() for word in sentence])
            sentence = sentence[: max(1, int(np.searchsorted(costs, left - 1, side="right")))]
            text.extend(sentence)
            out.append([*sentence, "."])
            left -= int(costs[len(sentence) - 1]) + 1
        return out


def join_sentences(sentences: list[list[str]]) -> str:
    """Join the words of sentences, without the space before the first."""
    return "".join(itertools.chain.from_iterable(sentences)).lstrip()


@cache
def lexicon(words: int) -> np.ndarray:
    """Build `words` distinct word-like strings of two syllables and a final consonant, the same on every machine."""
    rng = default_rng(words)
    distinct: dict[str, None] = {}
    while len(distinct) < words:
        c = rng.choice(list("bdfgklmnprstvz"), 3)
        v = rng.choice(list("aeiou"), 2)
        distinct[f"{c[0]}{v[0]}{c[1]}{v[1]}{c[2]}"] = None
    return np.array(list(distinct))


def sample_numbers(rng: Generator, n: int, digits: int) -> list[str]:
    """Sample `n` distinct numbers of exactly `digits` digits, as strings."""
    low, high = 10 ** (digits - 1), 10**digits
    numbers: dict[str, None] = {}
    while len(numbers) < n:
        numbers[str(rng.integers(low, high))] = None
    return list(numbers)


def example() -> str:
    """Spell out a test of three numbers, with every text of this module."""
    return TASK + NEEDLE.format(number="12") + QUESTION + ANSWER_PREFIX + answer(["12", "34", "56"])


def answer(numbers: list[str]) -> str:
    """Complete the answer prefix with the numbers in order.

    Example:
        >>> answer(["12", "34", "56"])
        ' 12, 34 and 56.'
    """
    if len(numbers) == 1:
        return f" {numbers[0]}."
    return " " + ", ".join(numbers[:-1]) + f" and {numbers[-1]}."
