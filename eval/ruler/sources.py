"""The tasks' sources of text: local files, or stand-ins, which the results name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

from eval.ruler.documents import MadeUpPeople, Questions, read_hotpotqa, read_squad
from eval.ruler.haystacks import Essays, read_essays
from lab.errors import MissingPackage

STANDIN = "standin"


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
        return cls(read_essays(haystack), read_squad(squad), read_hotpotqa(hotpotqa), read_words(words))

    @cached_property
    def names(self) -> dict[str, str]:
        """Name each source by its content, or as a stand-in."""
        questions = {"squad": self.squad, "hotpotqa": self.hotpotqa}
        named = {"essays": STANDIN if self.essays.text is None else digest(self.essays.text)}
        named["words"] = STANDIN if self.words is None else digest("\n".join(self.words))
        for name, source in questions.items():
            if isinstance(source, MadeUpPeople):
                named[name] = STANDIN
            else:
                named[name] = digest(json.dumps([source.documents, [asdict(entry) for entry in source.entries]]))
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
