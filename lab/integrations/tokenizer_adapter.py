"""Tokenizers of other libraries by their encode and decode, as those of litgpt, nanochat, tiktoken and sentencepiece.

The probe needs what `tokenizers` returns for a text: ids, and the characters of each token. Here the latter follow from
decoding tokens with the one before. Parts of a prompt are encoded after a line break if the library puts a space before
every text; the tokens of the break are then dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
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

    def char_to_token(self, index: int) -> int | None:
        """Return the token of a character, None if no token has it."""
        return next((token for token, (start, end) in enumerate(self.offsets) if start <= index < end), None)


class TokenizerAdapter:
    """A tokenizer of another library with the methods of `tokenizers.Tokenizer` that the probe calls."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Check that texts are read back.

        Raises: ConfigError.
        """
        name, text = type(tokenizer).__name__, "The number is 471829. A line\nends, and \u00e9 is no ASCII."
        self.tokenizer, self.before, self.takes_tensor = tokenizer, "", False
        self.read = lru_cache(2**16)(self.decode)
        try:
            # tiktoken's `encode` rejects texts with the names of special tokens.
            self.encode_text = getattr(tokenizer, "encode_ordinary", tokenizer.encode)
            # Special tokens that the library puts before and after every text, also an empty one.
            self.ends = self.to_ids("")
            is_end = [end == token for end, token in zip(self.ends, self.to_ids("a"), strict=False)]
            self.n_before = [*is_end, False].index(False)
            try:
                self.decode(self.to_plain_ids("a"))
            except (AttributeError, TypeError):  # litgpt's decode
                self.takes_tensor = True
            if not keeps_edges(self):
                self.before = "\n"
            encoded = self.encode(text, add_special_tokens=False)
            is_read = self.decode(encoded.ids).strip() == text and keeps_edges(self)
            is_read &= encoded.offsets[-1][1] == len(text)
        except Exception as error:  # of any library
            rule = f"must be a tokenizers.Tokenizer or have encode and decode ({first_line(error)})"
            raise ConfigError(f"tokenizer={name}: {rule}; for instance Tokenizer.from_file(PATH)") from error
        if not is_read:
            raise ConfigError(f"tokenizer={name}: does not read texts back as they are; pass a tokenizers.Tokenizer")

    def to_ids(self, text: str) -> list[int]:
        ids = self.encode_text(text)
        return np.asarray(getattr(ids, "ids", ids), dtype=np.int64).ravel().tolist()

    def to_plain_ids(self, text: str) -> list[int]:
        """Encode a text without the special tokens around it."""
        ids = self.to_ids(text)
        return ids[self.n_before : len(ids) - len(self.ends) + self.n_before]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(torch.tensor(ids) if self.takes_tensor else list(ids)))

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Encode a text, by default with the special tokens that the library adds by itself."""
        if add_special_tokens:
            ids = self.to_ids(text)
            n_after = len(self.ends) - self.n_before
            n = len(ids) - len(self.ends)
            return Encoded(ids, [], [1] * self.n_before + [0] * n + [1] * n_after)
        ids = self.to_plain_ids(self.before + text)
        n = len(self.to_plain_ids(self.before))
        spans = list(self.find_spans(ids))
        shift = spans[n - 1][1] if n else 0
        return Encoded(ids[n:], [(begin - shift, end - shift) for begin, end in spans[n:]], [0] * (len(ids) - n))

    def find_spans(self, ids: list[int]) -> Iterator[tuple[int, int]]:
        """Find the characters of each token: the first token of a character that has several has none."""
        # Decoding may drop a space at the beginning, so that tokens are decoded after those of another text.
        context = self.to_plain_ids("1\n1")
        read = at = 0
        for stop in range(1, len(ids) + 1):
            piece = self.read((*context, *ids[read:stop]))
            end = at
            if not piece.endswith("\ufffd"):  # a part of a character
                end += len(piece) - len(self.read(tuple(context)))
                read = stop
            yield at, end
            at = end
