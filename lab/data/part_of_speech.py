"""Parts of speech of token types, by a spaCy pipeline: each type takes its most frequent label.

Texts are joined from their tokens, so that the characters of every token are known; a token's label is that of most of
its characters. White space is SPACE, words without a label are X; all others are the labels of Universal Dependencies,
as in arXiv:2409.00509, Figure 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.bars import Bar
from lab.errors import ConfigError, MissingPackage, first_line

UNUSED = ("parser", "senter", "ner", "lemmatizer")  # pipeline components that do not change parts of speech
PIECE = 2000  # tokens tagged at a time
UNLABELLED, SPACE = "X", "SPACE"
BREAK = "\n"  # replaces a special token, which has no text and separates texts


def open_tagger(name: str) -> Any:
    """Open an installed pipeline by its name, or a folder of one.

    Raises: MissingPackage without spaCy, ConfigError for a missing pipeline.
    """
    try:
        import spacy
    except ImportError as error:
        raise MissingPackage("spacy", "--by=pos", "pos") from error
    try:
        return spacy.load(name, exclude=UNUSED)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"--tagger={name}: cannot be opened ({first_line(error)}); install a pipeline, for instance "
            "en_core_web_sm by python -m spacy download, or name the folder of one"
        ) from error


def label_types(tagger: Any, rows: Iterable[npt.NDArray[np.int64]], texts: Sequence[str | None]) -> dict[int, str]:
    """Determine the part of speech of every token type in some texts; ties are resolved alphabetically.

    `texts` holds the text of every token, None for special tokens, which take no label.

    Shapes: rows of (n_tokens,).
    Raises: ConfigError for a pipeline that labels nothing.
    """
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    pieces = [row[start : start + PIECE].tolist() for row in rows for start in range(0, len(row), PIECE)]
    bar = Bar(pieces, desc="parts of speech", leave=False)
    for piece, document in zip(bar, tagger.pipe(joined(piece, texts) for piece in pieces), strict=True):
        for token, label in zip(piece, labels_of(piece, texts, document), strict=True):
            if texts[token] is not None:
                counts[token][label] += 1
    if not {label for labels in counts.values() for label in labels} - {UNLABELLED, SPACE}:
        raise ConfigError(
            "--tagger: labels no part of speech; give a pipeline with a tagger or a morphologizer, such as "
            "en_core_web_sm"
        )
    return {token: min(labels, key=lambda label: (-labels[label], label)) for token, labels in counts.items()}


def joined(piece: Sequence[int], texts: Sequence[str | None]) -> str:
    r"""Join a text from its tokens.

    Example:
        >>> joined([1, 2, 0, 1], [None, " a", "7"])
        ' a7\n a'
    """
    return "".join(own_text(token, texts) for token in piece)


def own_text(token: int, texts: Sequence[str | None]) -> str:
    """Return the characters of a token."""
    text = texts[token]
    return BREAK if text is None else text


def labels_of(piece: Sequence[int], texts: Sequence[str | None], document: Any) -> Iterator[str]:
    """Yield each token's label in a tagged text: that of most of its characters, the first in a tie."""
    labels: list[str] = [""] * len(document.text)
    for word in document:
        if not word.is_space:
            labels[word.idx : word.idx + len(word)] = [word.pos_ or UNLABELLED] * len(word)
    ends = accumulate((len(own_text(token, texts)) for token in piece), initial=0)
    for begin, end in pairwise(ends):
        own = Counter(label for label in labels[begin:end] if label)
        yield own.most_common(1)[0][0] if own else SPACE
