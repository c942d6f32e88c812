"""Random words, numbers and uuids, none of which is part of another of its kind.

RULER looks for an answer anywhere in a model's output, so that `art` would be found in `party`. The English words of
words.yaml are chosen to avoid that. Made-up words all have the same length and contain no English one.
"""

import uuid
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from lab.core import yaml

DIGITS = 7
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = 4  # of a made-up word: 70 ** 4 words, more than any list takes
Generator = np.random.Generator


@cache
def english() -> dict[str, list[str]]:
    """Read the adjectives, nouns and verbs."""
    text = Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")
    return {kind: words.split() for kind, words in yaml.parse_yaml(text, "words.yaml").items()}


def contains_english(word: str) -> bool:
    """Return whether another word contains an English word of the lists.

    Example:
        >>> contains_english("batigero"), contains_english("batigevo")
        (True, False)
    """
    return any(part in word for part in chain(*english().values()))


def sample_pair(rng: Generator) -> str:
    """Sample an adjective and a noun, joined by a hyphen."""
    adjectives, nouns = english()["adjectives"], english()["nouns"]
    return f"{adjectives[rng.integers(len(adjectives))]}-{nouns[rng.integers(len(nouns))]}"


def sample_number(rng: Generator, digits: int = DIGITS) -> str:
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def sample_uuid(rng: Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def sample_made_up(rng: Generator) -> str:
    """Sample a word of 8 letters, consonants and vowels in turn, that contains no English word of the lists."""
    while True:
        picks = zip(rng.integers(len(CONSONANTS), size=SYLLABLES), rng.integers(len(VOWELS), size=SYLLABLES))
        word = "".join(CONSONANTS[c] + VOWELS[v] for c, v in picks)
        # RULER searches answers anywhere in an output, so that a made-up word must not contain another answer
        if not contains_english(word):
            return word


def sample_letters(rng: Generator, alphabet: str, n: int) -> str:
    return "".join(alphabet[k] for k in rng.integers(len(alphabet), size=n))


class Distinct:
    """An endless list of distinct words, drawn when they are first asked for."""

    def __init__(self, draw: Callable[[], str], taken: list[str] | None = None) -> None:
        self.draw = draw
        self.words = list(taken or [])
        self.seen = set(self.words)

    def first(self, n: int) -> list[str]:
        """Return the first `n` words."""
        while len(self.words) < n:
            word = self.draw()
            if word not in self.seen:
                self.seen.add(word)
                self.words.append(word)
        return self.words[:n]

    def next(self) -> str:
        return self.first(len(self.words) + 1)[-1]
