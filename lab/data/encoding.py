"""Texts as token ids, and the bytes of the original text that each token encodes."""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lab.core.errors import DataError
from lab.core.types import IntArray

Ids = np.typing.NDArray[np.uint32]


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
    if keeps_edges(copy):
        return copy
    # XGLM reads a line break as a space, and joins it to the space after it.
    if keeps_edges(tokenizer, "a"):
        return tokenizer
    raise DataError(
        "tokenizer.json: adds or deletes white space where a text begins or ends, so that prompts cannot be put "
        "together; correct its normalizer"
    )


def keeps_edges(tokenizer: Any, first: str = "a\n\n") -> bool:
    """Return whether texts that begin or end with white space are read back one after the other as one text."""
    texts = (first, " a", " a")
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


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], *, with_spans: bool = False
) -> Iterator[tuple[Ids, IntArray | None]]:
    """Encode texts without the special tokens of a document; with `with_spans` also find each token in its text.

    Shapes: ids uint32 (tokens,); the begin and end of each token in characters int64 (tokens, 2).
    """
    encode = tokenizer.encode_batch if with_spans else tokenizer.encode_batch_fast  # which computes no offsets
    for encoding in encode(texts, add_special_tokens=False):
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) if with_spans else None
        yield np.array(encoding.ids, dtype=np.uint32), spans


def count_bytes(spans: IntArray, text: str, n_skipped: int = 0) -> Ids:
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
