"""Tokenizers of other libraries by their encode and decode, as those of litgpt, nanochat, tiktoken and sentencepiece.

The probe needs what `tokenizers` returns for a text: ids, and the characters of each token. Here the latter follow from
decoding tokens with the one before. Parts of a prompt are encoded after a line break if the library puts a space before
every text; the tokens of the break are then dropped.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from os.path import commonprefix
from typing import NamedTuple, Protocol

import numpy as np
import torch

from lab.core.errors import ConfigError, first_line
from lab.data.encoding import keeps_edges


class TextTokenizer(Protocol):
    """What a tokenizer of any library has."""

    @property
    def encode(self) -> Callable[..., object]:
        """The function from a text to ids."""

    @property
    def decode(self) -> Callable[..., object]:
        """The function from ids to a text."""


class Encoded(NamedTuple):
    """The part of `tokenizers.Encoding` that the probe reads."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]


class TokenizerAdapter:
    """A tokenizer of another library with the methods of `tokenizers.Tokenizer` that the probe calls."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Check that texts are read back.

        Raises: ConfigError.
        """
        name, text = type(tokenizer).__name__, "The number is 471829. A line\nends, and \u00e9 is no ASCII."
        self.tokenizer, self.before = tokenizer, ""
        self.read = lru_cache(2**16)(self.decode)
        try:
            # tiktoken's `encode` rejects texts with the names of special tokens.
            self.encode_text = getattr(tokenizer, "encode_ordinary", tokenizer.encode)
            # Special tokens that the library puts before and after every text, also an empty one.
            ends = self.to_ids("")
            self.n_before = len(commonprefix([ends, self.to_ids("a")]))  # noqa: RUF071
            self.n_after = len(ends) - self.n_before
            if not keeps_edges(self):
                self.before = "\n"
            encoded = self.encode(text, add_special_tokens=False)
            is_read = self.decode(encoded.ids).strip() == text and keeps_edges(self)
            is_read &= encoded.offsets[-1][1] == len(text)
        except Exception as error:  # of any library
            raise ConfigError(
                f"tokenizer={name}: must be a tokenizers.Tokenizer or have encode and decode ({first_line(error)}); "
                "for instance Tokenizer.from_file(PATH)"
            ) from error
        if not is_read:
            raise ConfigError(f"tokenizer={name}: does not read texts back as they are; pass a tokenizers.Tokenizer")

    def to_ids(self, text: str) -> list[int]:
        ids = self.encode_text(text)
        return np.asarray(getattr(ids, "ids", ids), dtype=np.int64).ravel().tolist()

    def decode(self, ids: Sequence[int]) -> str:
        try:
            return str(self.tokenizer.decode(list(ids)))
        except (AttributeError, TypeError):  # litgpt's decode
            return str(self.tokenizer.decode(torch.tensor(ids)))

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Encode a text, by default with the special tokens that the library adds by itself, and without offsets."""
        ids = self.to_ids(self.before + text if not add_special_tokens else text)
        plain = ids[self.n_before : len(ids) - self.n_after]
        if add_special_tokens:
            return Encoded(ids, [], [1] * self.n_before + [0] * len(plain) + [1] * self.n_after)
        n = len(self.to_ids(self.before)) - self.n_before - self.n_after
        ends = np.array(self.find_ends(plain))[n:]
        return Encoded(plain[n:], list(pairwise((ends - ends[0]).tolist())), [])

    def find_ends(self, ids: list[int]) -> list[int]:
        """Find the character at which each token ends, from 0 on; only the last token of a character contains it."""
        # Decoding may drop a space at the beginning, so that tokens are decoded after those of another text.
        context = self.to_ids("1\n1")[self.n_before :]
        context = context[: len(context) - self.n_after]
        n_context = len(self.read(tuple(context)))
        ends, start = [0], 0
        for stop in range(1, len(ids) + 1):
            piece = self.read((*context, *ids[start:stop]))
            ends.append(ends[-1])
            if not piece.endswith("\ufffd"):  # a part of a character
                ends[-1] += len(piece) - n_context
                start = stop
        return ends
