r"""Sentences: between which tokens ids may break.

A token whose text holds one of the marks . ! ? or a line break ends a sentence:

    tokens     It | was | late | . | He | left | .\n\n | And then
    lengths    4                     3                   1

The text after the last mark is a sentence as well, so that the lengths sum to the number of tokens. Every token
with a mark ends one: the second token of a "?!" is a sentence of its own, and a "3.14" of three tokens is cut after the
point.

Source: arXiv:2409.00509, Algorithm 1, line 6. The released code ends sentences at five token ids of Llama 3's
vocabulary only, so that a mark inside a longer token, as in `."` or a blank line after a full stop, ends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lab.errors import DataError
from lab.skip.base import IntArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MARKS = ".!?\n"
BoolArray = npt.NDArray[np.bool_]


def split_sentences(ids: Sequence[int] | npt.NDArray[np.integer], ends: BoolArray) -> IntArray:
    """Return the lengths in tokens of the sentences of a token sequence; none for an empty one.

    `ends` is true for every token id that ends a sentence, as computed by `sentence_ends`.

    Shapes: (n_tokens,), (vocab_size,) -> int64 (n_sentences,).
    Raises: DataError for a token id that `ends` does not hold.
    Example:
        >>> split_sentences([7, 1, 0, 5, 0, 7], np.array([True, False, False, False, False, False, False, False]))
        array([3, 2, 1])
    """
    tokens = np.asarray(ids, dtype=np.int64)
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < len(ends)):
        rule = f"must be in 0..{len(ends) - 1}; make `ends` from the tokenizer that made them"
        raise DataError(f"ids={tokens.min()}..{tokens.max()}: {rule}")
    closing = ends[tokens]
    closing[-1:] = True
    return np.diff(np.flatnonzero(closing), prepend=-1)


def sentence_ends(tokenizer: Tokenizer) -> BoolArray:
    """Return for every token id whether its text contains a mark; special tokens have no text and end nothing.

    Shapes: bool (vocab_size,), added tokens included.
    """
    n_ids = max(tokenizer.get_vocab().values()) + 1
    texts = tokenizer.decode_batch([[token] for token in range(n_ids)])
    return np.array([any(mark in text for mark in MARKS) for text in texts], dtype=np.bool_)
