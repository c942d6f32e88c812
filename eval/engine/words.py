"""Random words, numbers and uuids, none of which is part of another of its kind.

RULER looks for an answer anywhere in a model's output, so that `art` would be found in `party`. The English words of
words.yaml are chosen to avoid that; made-up words all have the same length and contain no English one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from lab.settings import parse_yaml

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DIGITS = 7
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = 4  # of a made-up word: 70 ** 4 words, more than any list takes

Generator = np.random.Generator


@cache
def english() -> dict[str, list[str]]:
    """Read the adjectives, nouns and verbs."""
    text = Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")
    return {kind: words.split() for kind, words in parse_yaml(text, "words.yaml").items()}


@cache
def english_set() -> frozenset[str]:
    """Collect the English words of all kinds."""
    return frozenset(word for words in english().values() for word in words)


def holds_english(word: str) -> bool:
    """Return whether another word contains an English word of the lists.

    Example:
        >>> holds_english("batigero"), holds_english("batigevo")
        (True, False)
    """
    ends = range(len(word) + 1)
    return any(word[a:b] in english_set() for a in ends for b in ends[a:])


def draw_pair(rng: Generator) -> str:
    """Draw an adjective and a noun, joined by a hyphen."""
    adjectives, nouns = english()["adjectives"], english()["nouns"]
    return f"{adjectives[rng.integers(len(adjectives))]}-{nouns[rng.integers(len(nouns))]}"


def draw_number(rng: Generator) -> str:
    """Draw a number of 7 digits."""
    return str(rng.integers(10 ** (DIGITS - 1), 10**DIGITS))


def draw_uuid(rng: Generator) -> str:
    """Draw a random uuid (version 4)."""
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def draw_made_up(rng: Generator) -> str:
    """Draw a word of 8 letters, consonants and vowels in turn, that holds no English word of the lists."""
    while True:
        picks = zip(rng.integers(len(CONSONANTS), size=SYLLABLES), rng.integers(len(VOWELS), size=SYLLABLES))
        word = "".join(CONSONANTS[c] + VOWELS[v] for c, v in picks)
        if not holds_english(word):
            return word


def draw_letters(rng: Generator, alphabet: str, n: int) -> str:
    """Draw a word of `n` letters."""
    return "".join(alphabet[k] for k in rng.integers(len(alphabet), size=n))


class Distinct:
    """An endless list of distinct words, drawn when they are first asked for."""

    def __init__(self, draw: Callable[[], str], taken: list[str] | None = None) -> None:
        self.draw, self.words, self.seen = draw, list(taken or []), set(taken or [])

    def first(self, n: int) -> list[str]:
        """Return the first `n` words."""
        while len(self.words) < n:
            word = self.draw()
            if word not in self.seen:
                self.seen.add(word)
                self.words.append(word)
        return self.words[:n]

    def next(self) -> str:
        """Draw one more word."""
        return self.first(len(self.words) + 1)[-1]
