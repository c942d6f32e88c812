"""Texts as token ids: long texts in pieces, and the bytes of the original text that each token encodes.

The tokenizers library takes five times as long for one long text as for its pieces. A text is cut where the tokens of
the characters around the cut are those of its two sides, so that the pieces have the tokens of the whole text:

    tokens of "... the end of a piece| and the next ..."  =  tokens of "... the end of a piece" + those of " and ..."

Some tokenizers add a space to the beginning of every text. Then the space at a cut belongs to neither piece.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from lab.core.errors import DataError
from lab.core.types import IntArray

PIECE = 20_000  # characters

Counts = np.typing.NDArray[np.uint32]
Tokenize = Callable[[str], list[int] | list[str]]


def switch_off_extras(tokenizer: Tokenizer) -> None:
    """Switch off the settings that change the tokens of a text besides their encoding."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for name in ("dropout", "alpha"):  # of a byte-pair encoding, and of a unigram model that samples
        if getattr(tokenizer.model, name, None):
            setattr(tokenizer.model, name, None)


@lru_cache(8)
def inside_text(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that encodes text after other text: `tokenizer` itself, or a copy that keeps a text's edges.

    The normalizer of Llama 2 puts a space before every text, also before one that begins with a space. Prompts of
    tokenizers that add a space only where there is none have always had it, and keep their tokens.

    Raises: DataError for a tokenizer that changes the edges of texts in another way.
    """
    if keeps_edges(tokenizer):
        return tokenizer
    content = json.loads(tokenizer.to_str())
    for name, key in {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}.items():
        if content[name] is not None:
            content[name] = {"type": "Sequence", key: list(inner_steps(content[name], key))}
    copy = Tokenizer.from_str(json.dumps(content))
    copy.encode_special_tokens = tokenizer.encode_special_tokens  # which is not in the text of a tokenizer
    if not keeps_edges(copy):
        raise DataError(
            "tokenizer.json: adds or deletes white space where a text begins or ends, so that prompts cannot be put "
            "together; correct its normalizer"
        )
    return copy


def keeps_edges(tokenizer: Any) -> bool:
    """Return whether texts that begin or end with white space are read back one after the other as one text."""
    texts = ("a\n\n", " a", " a")
    whole, *parts = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("".join(texts), *texts))
    return bool(tokenizer.decode(whole) == tokenizer.decode(list(chain.from_iterable(parts))))


def inner_steps(step: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer that do not depend on where a text begins and ends."""
    if step["type"] == "Sequence":
        for part in step[key]:
            yield from inner_steps(part, key)
    elif step["type"] not in ("Prepend", "Strip"):
        never = {"prepend_scheme": "never", "add_prefix_space": False}
        yield {name: never.get(name, value) for name, value in step.items()}


def cut_text(text: str, tokenize: Tokenize) -> list[tuple[str, str]]:
    """Cut a long text into pieces, each with the text between it and the next piece: a space, or nothing."""
    pieces = []
    begin = 0
    # no cut is looked for near the end, where the last piece would be short
    for start in range(PIECE, len(text) - PIECE, PIECE):
        cut = find_cut(text, start, tokenize)
        if cut is not None:  # without a cut, this piece and the next one are one
            end, after = cut
            pieces.append((text[begin:end], text[end:after]))
            begin = after
    return [*pieces, (text[begin:], "")]


def find_cut(text: str, start: int, tokenize: Tokenize) -> tuple[int, int] | None:
    """Find the first cut from an index on that changes no token: the end of one piece and the start of the next."""
    # none inside a run of spaces, whose tokens may depend on more of it than is compared
    boundaries = re.compile(r"\b|(?<=\S)(?=\s)|(?<=\s)(?=\S)").finditer(text, start, start + PIECE // 2)
    n = 256  # characters on either side of a cut, whose tokens are compared
    for boundary in islice(boundaries, 64):
        end = boundary.start()
        choices = [end]
        if text[end] == " ":  # the tokenizer may add this space to the next piece by itself
            choices.append(end + 1)
        for after in choices:
            parts = chain(tokenize(text[end - n : end]), tokenize(text[after : after + n]))
            if [*parts] == tokenize(text[end - n : after + n]):
                return end, after
    return None


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], *, with_spans: bool = False
) -> Iterator[tuple[Counts, IntArray | None]]:
    """Encode texts without the special tokens of a document; with `with_spans` also find each token in its text.

    Shapes: ids uint32 (tokens,); the begin and end of each token in characters int64 (tokens, 2).
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    encode_batch = tokenizer.encode_batch if with_spans else tokenizer.encode_batch_fast  # which computes no offsets
    pieces_of_texts = [cut_text(text, encode) for text in texts]

    def encode_pieces() -> Iterator[Encoding]:
        pieces = (piece for piece, _ in chain.from_iterable(pieces_of_texts))
        while batch := list(islice(pieces, 256)):
            yield from encode_batch(batch, add_special_tokens=False)

    encodings = encode_pieces()
    for pieces in pieces_of_texts:
        ids, spans = [], []
        begin = 0
        for piece, dropped in pieces:
            encoding = next(encodings)
            ids.append(np.array(encoding.ids, dtype=np.uint32))
            if with_spans:
                spans.append(begin + np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2))
            begin += len(piece) + len(dropped)
        yield np.concatenate(ids), np.concatenate(spans) if with_spans else None


def count_bytes(spans: IntArray, text: str, n_skipped: int = 0) -> Counts:
    """Count the bytes of a text from the end of each token to the end of the next; the last token has the rest.

    So text that the tokenizer drops counts as well, and the counts add up to the bytes of the original text, without
    its first `n_skipped` characters.

    Shapes: `spans` int64 (tokens, 2), the begin and end of each token in characters; uint32 (tokens,).
    Example:
        >>> from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        >>> tokenizer = Tokenizer(models.WordLevel({"1": 0, "b": 1}, unk_token="b"))
        >>> tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Whitespace()
        >>> text = "\u2460 \u00df "  # a circled 1 of three bytes, and a letter of two
        >>> count_bytes(np.array(tokenizer.encode(text).offsets), text).tolist()
        [3, 4]
    """
    # tokens that share a character share its end: the first of them takes its bytes, the others none
    ends = np.maximum.accumulate(spans[:, 1])
    ends[-1:] = len(text)
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + (codes > 0x7F) + (codes > 0x7FF).astype(int) + (codes > 0xFFFF)
    widths[:n_skipped] = 0
    before = np.concatenate([[0], np.cumsum(widths)])
    return np.diff(before[ends], prepend=0).astype(np.uint32)


def mark_tokens(spans: IntArray, parts: Sequence[tuple[str, bool]]) -> np.ndarray:
    """Mark the tokens that contain a character of a scored part; one may also contain some of the part before or after.

    Shapes: `spans` int64 (tokens, 2), the begin and end of each token in characters; bool (tokens,).
    Example:
        >>> mark_tokens(np.array([(0, 2), (2, 5), (5, 6)]), [("Hi: ", False), ("yo.", True)]).tolist()
        [False, True, True]
    """
    is_scored = np.repeat([scored for _, scored in parts], [len(text) for text, _ in parts])
    before = np.concatenate([[0], np.cumsum(is_scored)])  # scored characters before each
    begins, ends = spans.T
    # a token that a tokenizer adds to the text has no character, and takes the mark of the next one
    return before[np.maximum(ends, begins + 1).clip(max=len(is_scored))] > before[begins]
