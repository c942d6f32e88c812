"""Texts of a harness's requests as the model's own tokens, and what of them is left where they are too long.

A context is encoded with the tokens that begin a document, and so is context and continuation together; what the
latter has beyond the former's length is the continuation. White space at a context's end belongs to the continuation.
An empty context is the token that begins a document, or where there is none the one that ends it. Text that spells a
special token, as <eos>, is text, unless a chat template wrote it.

A text to be scored is read whole where it fits into max_length tokens, else in pieces, each token being scored once: a
first piece of max_length tokens after the token that begins a document, then pieces of max_length tokens, each after
the one token before it, and a last piece of what is left, which sees max_length tokens as well. Tokens of a context
that do not fit are cut off on the left, for answers with room for the longest answer, and such requests are counted.

Source: lm-evaluation-harness 0.4.13, docs/model_guide.md and lm_eval/api/model.py. Its class `hf` does the same but for
one thing: unless add_bos_token=False, it puts the token that begins a document twice before a text, and scores the
second (its issue 3333).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from eval.common.cases import Writer
from lab.data.tokenizer import check_ids, special_ends
from lab.errors import ConfigError, DataError

Ids = list[int]


class Scored(NamedTuple):
    """What a pass is asked for: the last `len(targets)` tokens that follow `inputs`, shifted by one."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Ends(NamedTuple):
    """Tokens that may begin a document though the tokenizer does not write them, and those that end one."""

    begin_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]


class Encoder:
    """Encodes for a model that reads texts of `max_length` tokens."""

    def __init__(
        self, tokenizer: Tokenizer, ends: Ends, max_length: int, vocab_size: int, *, templated: bool = False
    ) -> None:
        """Find the token that an empty context stands for; `templated` contexts come from a chat template.

        Raises: DataError for a tokenizer that neither begins nor ends a document.
        """
        self.writer, self.stop_ids = Writer(tokenizer), ends.stop_ids
        self.writer.tokenizer.encode_special_tokens = not templated
        self.max_length, self.vocab_size, self.templated = max_length, vocab_size, templated
        self.begin_ids = special_ends(tokenizer)[0]
        prefix = [*self.begin_ids[-1:], *ends.begin_ids, *self.stop_ids]
        if not prefix:
            raise DataError("tokenizer.json: no token begins or ends a document; give config.json an eos_token_id")
        self.prefix_id = prefix[0]

    @property
    def end_text(self) -> str:
        """How the token that ends a document is written; empty where there is none."""
        return self.written(self.stop_ids[0]) if self.stop_ids else ""

    def written(self, token: int) -> str:
        """Write a special token's name."""
        name: str = self.writer.tokenizer.decode([token], skip_special_tokens=False)
        return name

    def pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Encode a context and its continuation.

        Raises: DataError for a continuation without tokens of its own.
        """
        if context:
            text = context.rstrip()
            ids = self.encode(text)
            before, after = ids or [self.prefix_id], self.encode(context + continuation)[len(ids) :]
        else:
            after = self.bare(continuation)
            before = [self.prefix_id]
            if after[:1] == before:
                after = after[1:]
        if not after:
            shown = f"{context[-20:]!r} + {continuation[:20]!r}"
            raise DataError(f"{shown}: the continuation has no token of its own in this tokenizer; mend the task")
        return before, after

    def scored(self, context: str, continuation: str) -> tuple[Scored, bool]:
        """Encode a pair as a pass, and tell whether the context was cut.

        Raises: ConfigError for a continuation that is longer than the window, DataError for one without tokens.
        """
        before, after = self.pair(context, continuation)
        if len(after) > self.max_length:
            fault = f"a continuation takes {len(after)} tokens"
            raise ConfigError(f"--max_length={self.max_length}: {fault}; raise it")
        ids = (before + after)[-(self.max_length + 1) :]
        return Scored(tuple(ids[:-1]), tuple(after)), len(before) + len(after) > len(ids)

    def pieces(self, text: str) -> Iterator[Scored]:
        """Cut a text to be scored into pieces."""
        ids = self.bare(text)
        whole = (self.prefix_id, *ids)
        for start in range(0, len(ids), self.max_length):
            end = min(start + self.max_length, len(ids))
            yield Scored(whole[max(0, end - self.max_length) : end], tuple(ids[start:end]))

    def prompt(self, context: str, budget: int) -> tuple[Ids, bool]:
        """Encode a context that `budget` tokens shall follow, and tell whether it was cut.

        Raises: ConfigError for an answer that leaves no room for a context.
        """
        if budget >= self.max_length:
            rule = f"answers of {budget} tokens leave no room for a context; raise it, or lower max_gen_toks"
            raise ConfigError(f"--max_length={self.max_length}: {rule}")
        ids = self.encode(context) or [self.prefix_id]
        kept = ids[-(self.max_length - budget) :]
        return kept, len(kept) < len(ids)

    def encode(self, text: str) -> Ids:
        """Encode a text with the tokens that begin a document, but for a template that has written them itself."""
        if self.templated and text.startswith(self.written(self.prefix_id)):
            return self.bare(text)
        if not text:
            return list(self.begin_ids)
        return self.checked(self.writer.encode(text))

    def bare(self, text: str) -> Ids:
        """Encode a text without the tokens that begin and end a document."""
        return self.checked(self.writer.tokenizer.encode(text, add_special_tokens=False).ids)

    def checked(self, ids: Ids) -> Ids:
        """Refuse a tokenizer with more tokens than the model knows.

        Raises: DataError.
        """
        check_ids(ids, self.vocab_size)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode an answer up to the first token that ends a document."""
        end = next((place for place, token in enumerate(ids) if token in self.stop_ids), len(ids))
        text: str = self.writer.tokenizer.decode(list(ids[:end]))
        return text
