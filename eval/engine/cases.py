"""Test cases, and the search for the haystack with which prompt and answer fill the length.

A case is a function of (tokenizer, task, length, seed, index) alone. Random draws do not depend on the length, so
that test k has the same keys, values and questions at every length, and only the haystack grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lab.errors import DataError
from lab.probe.needles import Case, check_spelling

PROBE_UNITS = 16  # first step of the search, which estimates the slope
MOST_UNITS = 100  # for each token of room; letters are the smallest units
GUESSES = 4  # steps by the slope before every other one halves the interval

Compose = Callable[[int], str]
Score = Callable[[str, Sequence[str]], float]


@dataclass(frozen=True)
class Turn:
    """The index of a test, and how long it may be.

    Units: `length` and `budget`, the room for the answer, in tokens.
    """

    length: int
    budget: int
    seed: int
    index: int
    rng: np.random.Generator

    @property
    def room(self) -> int:
        """Tokens of the longest prompt."""
        return self.length - self.budget


@dataclass(frozen=True)
class Draft:
    """A case before the length of its haystack is chosen.

    `compose` returns the prompt with a number of haystack units, at least `least`; with `most` of them the source is
    used up, and `exhausted` is the message. `refine` takes the units found and returns a second `compose`, of smaller
    ones.
    """

    compose: Compose
    least: int
    answers: tuple[str, ...]
    facts: Callable[[int], dict[str, Any]]
    most: int | None = None
    exhausted: str = ""
    refine: Callable[[int], Compose] | None = None


@dataclass(frozen=True, eq=False)
class TextCase(Case):
    """One test; `facts` records what was hidden and where, for analysis."""

    prompt: str
    answers: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Writer:
    """Encodes prompts with one tokenizer, without padding, truncation or ending tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True  # a text that spells <eos> is text and ends nothing
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        """Encode a prompt with the tokens that begin a document and without those that end it."""
        encoding = self.tokenizer.encode(text)
        ids: list[int] = encoding.ids
        end = len(ids)
        while end and encoding.special_tokens_mask[end - 1]:
            end -= 1
        return ids[:end]

    def count(self, text: str) -> int:
        """Count a prompt's tokens."""
        return len(self.encode(text))

    def spell(self, answers: Sequence[str]) -> list[int]:
        """Encode all answers as a model would write them."""
        ids: list[int] = self.tokenizer.encode(answer_text(answers), add_special_tokens=False).ids
        return ids

    def check_spelling(self, answers: Sequence[str], score: Score) -> None:
        """Refuse a tokenizer in which the right answer would not score 1.

        Raises: DataError.
        """
        check_spelling(self.tokenizer, answer_text(answers), answers, lambda text: score(text, answers) >= 1)


def answer_text(answers: Sequence[str]) -> str:
    """Write all answers as a model would."""
    return " " + ", ".join(answers)


def finish(draft: Draft, writer: Writer, turn: Turn) -> TextCase:
    """Grow the haystack to the largest size that fits; the smallest must fit.

    Raises: DataError for a source at its end.
    """
    count = cache(lambda n: writer.count(draft.compose(n)))
    units = fit(count, turn.room, draft.least, draft.most)
    prompt = draft.compose(units)
    if units == draft.most and count(units) < turn.room:
        raise DataError(draft.exhausted.format(length=turn.length))
    if draft.refine is not None:
        finer = draft.refine(units)
        prompt = finer(fit(lambda n: writer.count(finer(n)), turn.room, 0))
    ids = np.array(writer.encode(prompt), dtype=np.int32)
    assert len(ids) <= turn.room, f"prompt of {len(ids)} tokens in room for {turn.room}"
    return TextCase(ids, prompt, draft.answers, draft.facts(units))


def fit(count: Callable[[int], int], room: int, least: int, most: int | None = None) -> int:
    """Find a number of units that takes up `room` tokens, or fewer where one unit more would take more.

    `count` is close to a straight line, so the search follows its slope; `least` units must fit.

    Example:
        >>> fit(lambda n: 7 + 3 * n, 100, 0), fit(lambda n: 7 + 3 * n, 100, 0, most=20)
        (31, 20)
    """
    low, at_low, step = least, count(least), PROBE_UNITS
    assert at_low <= room, f"{least} units take {at_low} of {room} tokens"
    while True:  # grow until it no longer fits
        high = low + step if most is None else min(low + step, most)
        at_high = count(high) if high > low else at_low
        if at_high > room:
            break
        if at_high == room or high == most:
            return high
        if high - least > MOST_UNITS * (room + 1):
            raise DataError("tokenizer.json: text takes no tokens in it; give the model's own tokenizer")
        slope = (at_high - at_low) / (high - low)
        low, at_low = high, at_high
        step = max(1, round((room - at_high) / slope)) if slope > 0 else 2 * step
    for number in itertools.count():  # then narrow the interval
        if high - low <= 1 or at_low == room:
            break
        slope = (at_high - at_low) / (high - low)
        middle = low + round((room - at_low) / slope) if number < GUESSES or number % 2 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        at_middle = count(middle)
        if at_middle <= room:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low
