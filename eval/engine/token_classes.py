"""Classes of tokens by rule, from a token's text alone.

    special       a special token, such as <eos>
    line_break    white space with a line break
    space         other white space
    number        digits and other numerals, with marks between them or not: " 12", "3.14", "1,000"
    punctuation   marks and symbols
    capitalised   a word, or its beginning, with a capital: " The", "The"
    word_start    any other word that follows a space: " the", " x1"
    continuation  letters that follow no space, such as the rest of a word: "ing", "s"
    other         what is left: pieces of a character, control characters

The first class whose rule holds is taken; all rules but those of white space look past leading and trailing spaces.
Scripts without spaces or capitals are continuations throughout.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from eval.engine.impactful import BoolArray, FloatArray, IntArray, Tally

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # decoded from a piece of a character
CONTEXT = "a"  # text before a token, so that a leading space shows


def kinds(text: str) -> set[str]:
    """List the major categories of a text's characters: L letters, N numbers, P punctuation, S symbols, ..."""
    return {unicodedata.category(character)[0] for character in text}


RULES: Mapping[str, Callable[[str], bool]] = {
    "line_break": lambda text: text.isspace() and "\n" in text,
    "space": str.isspace,
    "number": lambda text: "N" in kinds(text.strip()) <= set("NPS"),
    "punctuation": lambda text: bool(text) and kinds(text.strip()) <= set("PS"),
    "capitalised": lambda text: text.lstrip()[:1].isupper(),
    "word_start": lambda text: text[:1].isspace() and text.lstrip()[:1].isalpha(),
    "continuation": lambda text: text[:1].isalpha(),
}
CLASSES = ("special", *RULES, "other")


def token_class(text: str) -> str:
    r"""Find the class of a token's text.

    Example:
        >>> [token_class(text) for text in (" 12", " The", " the", "ing", ".", "\n\n", " ")]
        ['number', 'capitalised', 'word_start', 'continuation', 'punctuation', 'line_break', 'space']
    """
    if REPLACEMENT in text:
        return "other"
    return next((name for name, holds in RULES.items() if holds(text)), "other")


def token_texts(tokenizer: Tokenizer) -> list[str | None]:
    """Return every token's text as it appears inside a text, a leading space included; None for a special token.

    Shapes: (vocab_size,), added tokens included.
    """
    n_ids = max(tokenizer.get_vocab().values()) + 1
    before = tokenizer.encode(CONTEXT, add_special_tokens=False).ids
    start = len(tokenizer.decode(before))
    texts = tokenizer.decode_batch([[*before, token] for token in range(n_ids)], skip_special_tokens=True)
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    return [None if token in special else text[start:] for token, text in enumerate(texts)]


def vocabulary_classes(texts: Sequence[str | None]) -> list[str]:
    """Find the class of every token.

    Example:
        >>> vocabulary_classes([None, " a", "7"])
        ['special', 'word_start', 'number']
    """
    return ["special" if text is None else token_class(text) for text in texts]


@dataclass(frozen=True, eq=False)
class Labels:
    """The label of every token id, -1 where it has none, and the labels' names.

    Shapes: `of_token` int64 (vocab_size,).
    """

    of_token: IntArray
    names: list[str]

    @classmethod
    def by_token(cls, texts: Sequence[str | None]) -> Labels:
        """Label every token by its own text."""
        return cls(np.arange(len(texts)), [repr(text or "") for text in texts])

    @classmethod
    def by_class(cls, texts: Sequence[str | None]) -> Labels:
        """Label tokens by their classes."""
        return cls(np.array([CLASSES.index(name) for name in vocabulary_classes(texts)]), list(CLASSES))

    @classmethod
    def by_tag(cls, tags: dict[int, str], n_ids: int) -> Labels:
        """Label the tokens that were tagged.

        Example:
            >>> labels = Labels.by_tag({3: "NUM", 0: "ADP"}, 5)
            >>> labels.of_token.tolist(), labels.names
            ([0, -1, -1, 1, -1], ['ADP', 'NUM'])
        """
        names = sorted(set(tags.values()))
        of_token = np.full(n_ids, -1)
        of_token[list(tags)] = [names.index(label) for label in tags.values()]
        return cls(of_token, names)

    def tally(self, targets: IntArray, changes: FloatArray, marked: BoolArray) -> Tally:
        """Count targets by label.

        Shapes: (n_targets,), all.
        """
        return Tally.of(self.of_token[targets], changes, marked, len(self.names))
