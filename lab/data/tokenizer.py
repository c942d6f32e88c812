"""Tokenizers: any tokenizer.json, or a byte-pair encoding trained on the corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lab.errors import DataError

BOS, EOS = "<bos>", "<eos>"
# words with their leading space, single digits, punctuation, white space: numbers are split into digits
PIECES = r" ?[^\s\p{N}\p{P}\p{S}]+|\p{N}| ?[\p{P}\p{S}]+|\s+(?!\S)|\s+"


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose documents begin with <bos>; the caller ends them with <eos>.

    Raises: DataError when there is no text to learn from.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = filter(None, texts)
    first = next(texts, None)
    if first is None:
        raise DataError("data.corpus: empty, there is no text to train a tokenizer on; check its path")
    tokenizer.train_from_iterator(chain([first], texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def load_tokenizer(path: Path, eos: str | None = None) -> Tokenizer:
    """Read a tokenizer.json, or the one in a folder; a text that spells a special token, or `eos`, is text.

    Raises: DataError for a missing or broken file.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"data.tokenizer.path={path}: no such file; name a tokenizer.json or a folder with one")
    try:
        tokenizer = Tokenizer.from_str(with_special(file.read_text(encoding="utf-8"), eos))
    except Exception as error:  # the library raises plain Exception for every broken file
        raise DataError(f"data.tokenizer.path={path}: not a tokenizer.json ({error}); save it again") from error
    tokenizer.encode_special_tokens = True  # <eos> in a text is plain text and ends nothing
    return tokenizer


def with_special(text: str, token: str | None) -> str:
    """Mark an added token of a tokenizer.json as special, as the library encodes texts that spell one that is not."""
    settings = json.loads(text)
    ours = [added for added in settings.get("added_tokens", ()) if added["content"] == token]
    for added in ours:
        added["special"] = True
    return json.dumps(settings, ensure_ascii=False) if ours else text


def check_ids(ids: npt.ArrayLike, vocab_size: int) -> None:
    """Refuse ids beyond the model's vocabulary.

    Raises: DataError.
    """
    if np.max(ids, initial=0) >= vocab_size:
        raise DataError(f"tokenizer.json: has more ids than the model's {vocab_size}; use the model's own tokenizer")


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a model's tokenizer, which must not be missing.

    Raises: DataError.
    """
    if tokenizer is None:
        raise DataError("tokenizer.json: missing; put it into the Hugging Face folder, or prepare the run's shards")
    return tokenizer


def special_ends(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after every text."""
    encoding = tokenizer.encode("a")
    marks = encoding.special_tokens_mask
    text = [place for place, special in enumerate(marks) if not special]
    return encoding.ids[: text[0]], encoding.ids[text[-1] + 1 :]


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """Hash the vocabulary, every token with its id, in hexadecimal; equal hashes mean interchangeable ids."""
    entries = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()
