"""The tasks' sources of text: local files, or stand-ins, which the results name.

Haystacks are RULER's noise line repeated, essays from files, or made-up sentences.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from eval.engine.cases import english
from eval.ruler.qa import MadeUpPeople, QuestionFile, Questions, hotpotqa_entries, read_questions, squad_entries
from lab.errors import DataError, MissingPackage
from lab.probe.haystacks import read_text

STANDIN = "standin"
SENTENCE_END = re.compile(r"(?<=[.!?]) ")
FORMS = (
    "The {a} {n} and the {b} {m} {v} the {o}.",
    "Some {a} people {v} when the {n} becomes {b}, and others {w}.",
    "Whoever wants to {v} needs one {a} {n}, one {m} and many {b} {o}s.",
    "On {a} days they {v} beside the {b} {n}; later they {w} the {m}.",
)
FILES = ("*.txt", "*.json", "*.jsonl")

Text = Callable[[int], str]


@dataclass(frozen=True)
class Essays:
    """Running text; without a file, made-up English sentences stand in for it."""

    text: str | None
    field: str = "--haystack"

    def open(self, rng: np.random.Generator) -> tuple[Text, int | None]:
        """Return the text by its number of words from the beginning, as in RULER, and how many words there are."""
        if self.text is None:
            return sentences(rng), None
        words = self.text.split(" ")
        return lambda n: " ".join(words[:n]), len(words)

    @property
    def exhausted(self) -> str:
        """Report that the text is too short."""
        have = len((self.text or "").split(" "))
        return f"{self.field}: {have:,} words are too short a haystack for length={{length}}; give a longer text"


def read_essays(place: str | None) -> Essays:
    """Read a text file, or all text files of a folder in the order of their names.

    Raises: DataError for a place without text.
    """
    if place is None:
        return Essays(None)
    path = Path(place)
    if path.is_dir():
        files = sorted(file for pattern in FILES for file in path.rglob(pattern))
        if not files:
            raise DataError(f"--haystack={place}: holds no .txt, .json or .jsonl file; give a folder with text in it")
        text = " ".join(read_text(file, "--haystack") for file in files)
    else:
        text = read_text(path, "--haystack")
    return Essays(" ".join(text.split()), f"--haystack={place}")


def sentences(rng: np.random.Generator) -> Text:
    """Write made-up sentences without end."""
    pools = english()
    kinds = {"a": "adjectives", "b": "adjectives", "n": "nouns", "m": "nouns", "o": "nouns", "v": "verbs", "w": "verbs"}
    text: list[str] = []

    def first(n: int) -> str:
        while len(text) < n:
            form = FORMS[rng.integers(len(FORMS))]
            words = {slot: pools[kind][rng.integers(len(pools[kind]))] for slot, kind in kinds.items()}
            text.extend(form.format(**words).split(" "))
        return " ".join(text[:n])

    return first


def insert(pieces: Sequence[str], needles: Sequence[str], places: Sequence[int]) -> list[str]:
    """Put each needle before the piece with its place; `places` do not fall.

    Example:
        >>> insert(["a", "b", "c", "d"], ["X", "Y"], [2, 4])
        ['a', 'b', 'X', 'c', 'd', 'Y']
    """
    out: list[str] = []
    begin = 0
    for needle, place in zip(needles, places, strict=True):
        out += [*pieces[begin:place], needle]
        begin = place
    return [*out, *pieces[begin:]]


@dataclass(frozen=True)
class Sources:
    """Essays for haystacks, questions for question answering, words for cwe (None for the lab's own)."""

    essays: Essays
    squad: Questions
    hotpotqa: Questions
    words: tuple[str, ...] | None = None

    @classmethod
    def read(cls, haystack: str | None, squad: str | None, hotpotqa: str | None, words: str | None = None) -> Sources:
        """Read the files given; a stand-in takes the place of each that is not.

        Raises: DataError; MissingPackage for `words`.
        """
        one = read_questions(Path(squad), "--squad", "SQuAD", squad_entries) if squad else MadeUpPeople(hops=1)
        two: Questions = MadeUpPeople(hops=2)
        if hotpotqa:
            two = read_questions(Path(hotpotqa), "--hotpotqa", "HotpotQA", hotpotqa_entries)
        return cls(read_essays(haystack), one, two, read_words(words))

    @cached_property
    def names(self) -> dict[str, str]:
        """Name each source by its content, or as a stand-in."""
        named = {"essays": STANDIN if self.essays.text is None else digest(self.essays.text)}
        named["words"] = STANDIN if self.words is None else digest("\n".join(self.words))
        for name, source in {"squad": self.squad, "hotpotqa": self.hotpotqa}.items():
            named[name] = STANDIN
            if isinstance(source, QuestionFile):
                named[name] = digest(json.dumps([source.documents, source.entries]))
        return named


def read_words(package: str | None) -> tuple[str, ...] | None:
    """Read all nouns, adjectives and verbs of wonderwords, which RULER draws from; None without a package.

    Raises: MissingPackage.
    """
    if package is None:
        return None
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise MissingPackage("wonderwords", "--words=wonderwords", "ruler") from error
    return tuple(sorted(set(RandomWord().filter())))


def digest(text: str) -> str:
    """Name a text by its SHA-256, 16 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
