"""The one-number test: a single number hidden an exact number of tokens before the end of the prompt.

A case is a piece of haystack with one needle in it, the question and the answer's first words, without a task line.
Prompt and answer fill the window, or any shorter length asked for, whatever the distance:

    place     0 .. | needle ... number . | haystack | question, first words | number .
                                |<------------------ d ----------------->|
    d = last token of the prompt - first token of the needle's number

The wording is that of `lab.data.synthetic`, in which the synthetic corpus asks about a single number as about several.
Tokens that begin every answer, such as a blank, belong to the prompt: what is left to answer is the number, so that a
model that retrieves but does not keep to the wording is not taken for one that cannot retrieve.
With four needles two suffice, so that the nearest two decide, and a task line and four answers leave little of a small
window to look back over; here the distance is the only thing that changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tokenizers import Tokenizer

from lab.data import synthetic
from lab.data.synthetic import draw_numbers
from lab.data.tokenizer import special_ends
from lab.probe.needles import SAMPLE_NUMBERS, NeedleCase, compose, cut_haystack, number_place, plain_ids

SPARE_TOKENS = 64  # of haystack, among which a word begins
STREAM = 1  # keeps the draws of a distance apart from those of a four-needle length


@dataclass(frozen=True)
class Spelling:
    """A number in tokens: its needle, the index in it of the number's first token, its answer, the number's part.

    `answer` leaves out what begins every answer; `scored` holds the indices of its tokens that hold the digits.
    """

    needle: list[int]
    place: int
    answer: list[int]
    scored: list[int]

    @property
    def after(self) -> int:
        """Tokens of the needle after the first one of its number."""
        return len(self.needle) - 1 - self.place

    def fits(self, place: int, after: int, answer: int) -> bool:
        """Return whether none of the three parts is longer than allowed."""
        return self.place <= place and self.after <= after and len(self.answer) <= answer


@dataclass(frozen=True, eq=False)
class OneNumberCase(NeedleCase):
    """One test, with the tokens of the right answer and which of them are the number's."""

    spelling: Spelling


@dataclass(frozen=True, eq=False)
class OneNumberTest:
    """Draws the tests of a window; a test is a function of (seed, distance, number of the test).

    A number that takes more tokens than the longest of SAMPLE_NUMBERS is drawn again.
    """

    tokenizer: Tokenizer
    haystack: str
    window: int
    digits: int
    seed: int

    @cached_property
    def ends(self) -> tuple[list[int], list[int]]:
        """Tokens that begin every prompt, and those that end it: question, first words, what begins every answer."""
        tail = plain_ids(self.tokenizer, synthetic.QUESTION + synthetic.ANSWER_PREFIX)
        return special_ends(self.tokenizer)[0], tail + self.lead

    @cached_property
    def samples(self) -> list[str]:
        """Numbers whose tokens stand for those of all."""
        return draw_numbers(np.random.default_rng(0), SAMPLE_NUMBERS, self.digits)

    @cached_property
    def lead(self) -> list[int]:
        """Tokens before the number with which every answer begins; none where the number's first token differs."""
        leads = {tuple(ids[: digits[0]]) for ids, digits in map(self.answer, self.samples)}
        return list(leads.pop()) if len(leads) == 1 else []

    @cached_property
    def longest(self) -> tuple[int, int, int]:
        """Most tokens of a needle before its number's first, of one after it, and of an answer."""
        spelled = [self.spell(number, *self.answer(number)) for number in self.samples]
        return max(s.place for s in spelled), max(s.after for s in spelled), max(len(s.answer) for s in spelled)

    @property
    def budget(self) -> int:
        """Tokens of the window that are left for the answer."""
        return self.longest[2]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of every prompt."""
        return self.window - self.budget

    @property
    def reachable(self) -> range:
        """All distances that the window has room for."""
        head, tail = self.ends
        place, after, _ = self.longest
        return range(len(tail) + after, self.prompt_tokens - len(head) - place)

    def spell(self, number: str, ids: list[int], digits: list[int]) -> Spelling:
        """Encode a number's needle, beside its whole answer as `answer` encodes it."""
        needle, n = plain_ids(self.tokenizer, synthetic.NEEDLE.format(number=number)), len(self.lead)
        return Spelling(needle, number_place(self.tokenizer, number), ids[n:], [k - n for k in digits])

    def answer(self, number: str) -> tuple[list[int], list[int]]:
        """Encode a whole answer; return its tokens, and the indices of those that hold the number's digits."""
        text = synthetic.answer([number])
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        start = text.index(number)
        return encoding.ids, [k for k, (a, b) in enumerate(encoding.offsets) if b > start and a < start + len(number)]

    def case(self, distance: int, test: int) -> OneNumberCase:
        """Draw one test.

        The haystack is read from a random index on, so that the needle is at the beginning of a word.

        Raises: DataError for an empty haystack.
        """
        assert distance in self.reachable, f"distance {distance} outside {self.reachable}"
        generator = np.random.default_rng([self.seed, distance, test, STREAM])
        number, spelling = self.draw(generator)
        head, tail = self.ends
        n_hay = self.prompt_tokens - len(head) - len(spelling.needle) - len(tail)
        before = n_hay - (distance - len(tail) - spelling.after)
        hay, words = cut_haystack(self.tokenizer, self.haystack, n_hay + SPARE_TOKENS, generator)
        skipped = min((int(word) - before for word in words if 0 <= word - before <= SPARE_TOKENS), default=0)
        hay = hay[skipped : skipped + n_hay]
        drawn = compose(self.tokenizer, [number], hay, [before], (head, [spelling.needle], tail))
        assert (len(drawn.prompt_ids), drawn.distances) == (self.prompt_tokens, [distance]), "placed otherwise"
        return OneNumberCase(drawn.prompt_ids, drawn.numbers, drawn.depths, drawn.distances, spelling)

    def draw(self, generator: np.random.Generator) -> tuple[str, Spelling]:
        """Draw a number that is no longer in tokens than the sample's longest."""
        while True:
            (number,) = draw_numbers(generator, 1, self.digits)
            ids, digits = self.answer(number)
            spelling = self.spell(number, ids, digits)
            if ids[: len(self.lead)] == self.lead and spelling.fits(*self.longest):
                return number, spelling
