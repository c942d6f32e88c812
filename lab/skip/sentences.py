r"""Sentences: between which tokens ids may break, and which of them a sample is made of.

A token whose text contains one of the marks . ! ? or a line break ends a sentence:

    tokens     It | was | late | . | He | left | .\n\n | And then
    lengths    4                     3                   1

The text after the last mark is a sentence as well, so that the lengths sum to the number of tokens. Every token
with a mark ends one: the second token of a "?!" is a sentence of its own, and a "3.14" of three tokens is cut after the
point.

Source: arXiv:2409.00509, Algorithm 1, line 6. The released code ends sentences at five token ids of Llama 3's
vocabulary only. A mark inside a longer token, as in `."` or a blank line after a full stop, ends nothing there.

Sentence selection: a sample is a fixed number of tokens of a longer text, in whole sentences that matter.

    text        a long . | is x here . | and more . | x x . | so it y .      x and y are impactful tokens
    remaining              is x here .                x x .   so it y .
    sample                 is x here .                        so it          budget 6, drawn: the 2nd, then the 5th

1. A sentence without an impactful token is removed.
2. The others are sampled, each at most once, until the budget is full; the last one is cut to fit.
3. The sampled sentences keep the order of the text.

If fewer tokens remain than the budget, the sample is all of them. If no token of a text is impactful, all of its
sentences remain, so that no text is dropped; such samples are counted.

Source: arXiv:2409.00509, section 4.1, last paragraph, and Table 2, whose "Random T" draws from all sentences. The
paper does not specify how sentences are chosen among those that remain or what happens to the last one: both are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.core.types import IntArray
from lab.skip.methods import BoolArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MARKS = ".!?\n"


def split_sentences(ids: Sequence[int] | np.ndarray, ends: BoolArray) -> IntArray:
    """Return the lengths in tokens of the sentences of a token sequence; none for an empty one.

    `ends` is true for every token id that ends a sentence, as computed by `sentence_ends`.

    Shapes: (n_tokens,), (vocab_size,) -> int64 (n_sentences,).
    Example:
        >>> split_sentences([7, 1, 0, 5, 0, 7], np.array([True, False, False, False, False, False, False, False]))
        array([3, 2, 1])
    """
    closing = ends[np.asarray(ids, dtype=np.int64)]
    # The text after the last mark is a sentence too. A slice, as an empty sequence has no last token.
    closing[-1:] = True
    return np.diff(np.flatnonzero(closing), prepend=-1)


def sentence_ends(tokenizer: Tokenizer) -> BoolArray:
    """Return for each token id, bool (vocab_size,), whether its text contains a mark; special tokens have no text."""
    n_ids = max(tokenizer.get_vocab().values()) + 1
    ends = np.zeros(n_ids, dtype=np.bool_)
    # Decoded one by one: in a longer text a decoder may join or strip the text of a token.
    for token, text in enumerate(tokenizer.decode_batch([[token] for token in range(n_ids)])):
        ends[token] = not set(MARKS).isdisjoint(text)
    return ends


def sentences_with(impactful: BoolArray, tokens: IntArray, lengths: IntArray) -> BoolArray:
    """Return for each sentence whether one of its tokens is impactful.

    Shapes: impactful (vocab_size,), tokens (n_tokens,), lengths (n_sentences,) -> bool (n_sentences,).
    """
    begins = np.cumsum(lengths) - lengths
    return np.logical_or.reduceat(impactful[tokens], begins)


def draw_sentences(lengths: IntArray, remaining: BoolArray, budget: int, generator: np.random.Generator) -> IntArray:
    """Draw from the sentences that remain and return how many tokens of each are kept: all, the first few, or none.

    Shapes: (n_sentences,), (n_sentences,) -> int64 (n_sentences,).
    Example:
        >>> draw_sentences(np.array([4, 3, 2]), np.array([True, False, True]), 5, np.random.default_rng(0))
        array([4, 0, 1])
    """
    order = generator.permutation(np.flatnonzero(remaining))
    sizes = lengths[order]
    # What is left of the budget before each draw: below 0, a sentence keeps no token.
    room = budget - (np.cumsum(sizes) - sizes)
    drawn = np.zeros(len(lengths), dtype=np.int64)
    drawn[order] = np.clip(room, 0, sizes)
    return drawn


def kept_indices(lengths: IntArray, drawn: IntArray) -> IntArray:
    """List the indices in the text of the tokens that are kept, the first ones of each sentence.

    Shapes: (n_sentences,), (n_sentences,) -> int64 (drawn.sum(),), rising.
    Example:
        >>> kept_indices(np.array([4, 3, 2]), np.array([4, 0, 1]))
        array([0, 1, 2, 3, 7])
    """
    begins = np.cumsum(lengths) - lengths
    before = np.cumsum(drawn) - drawn
    return np.arange(drawn.sum(), dtype=np.int64) + np.repeat(begins - before, drawn)
