"""Texts of a harness's requests as the model's own tokens.

A context is encoded with the tokens that begin a document, and so is context and continuation together; what the
latter has beyond the former's length is the continuation (lm-evaluation-harness's `TemplateLM` splits them). An empty
context is the token that begins a document, or where there is none the one that ends it. Text that spells a special
token, as <eos>, is text, unless a chat template wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from eval.common.cases import Writer
from lab.data.tokenizer import check_ids, special_ends
from lab.errors import CheckpointError, DataError

Ids = list[int]
FILES = ("config", "generation_config", "tokenizer_config")


class Encoder:
    """Encodes and decodes for a model that knows `vocab_size` tokens."""

    def __init__(
        self, tokenizer: Tokenizer, begin_ids: Ids, stop_ids: Ids, vocab_size: int, *, templated: bool = False
    ) -> None:
        """Find the token that an empty context stands for; `templated` contexts come from a chat template.

        Raises: DataError for a tokenizer that neither begins nor ends a document.
        """
        self.writer, self.stop_ids, self.vocab_size, self.templated = Writer(tokenizer), stop_ids, vocab_size, templated
        self.writer.tokenizer.encode_special_tokens = not templated
        self.begin_ids = special_ends(tokenizer)[0]
        prefix = [*self.begin_ids[-1:], *begin_ids, *stop_ids]
        if not prefix:
            raise DataError("tokenizer.json: no token begins or ends a document; set eos_token_id in config.json")
        self.prefix_id = prefix[0]
        names = [self.writer.tokenizer.decode([token], skip_special_tokens=False) for token in (prefix[0], *stop_ids)]
        self.begin_text, self.end_text = names[0], "".join(names[1:2])

    def encode(self, text: str) -> Ids:
        """Encode a text with the tokens that begin a document, unless a template has written them itself."""
        if self.templated and text.startswith(self.begin_text):
            return self.bare(text)
        return self.checked(self.writer.encode(text)) if text else list(self.begin_ids)

    def bare(self, text: str) -> Ids:
        """Encode a text without the tokens that begin and end a document."""
        return self.checked(self.writer.tokenizer.encode(text, add_special_tokens=False).ids)

    def checked(self, ids: Ids) -> Ids:
        """Return ids that the model knows.

        Raises: DataError for a tokenizer with more tokens than the model.
        """
        check_ids(ids, self.vocab_size)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode an answer up to the first token that ends a document."""
        end = next((place for place, token in enumerate(ids) if token in self.stop_ids), len(ids))
        text: str = self.writer.tokenizer.decode(list(ids[:end]))
        return text


def ends_of(place: Path, tokenizer: Tokenizer, stop_id: int | None) -> tuple[Ids, Ids]:
    """Read which tokens begin and end a document from the files of a Hugging Face folder; a run folder has none.

    A model of chats ends its answers with other tokens than its documents: config.json and generation_config.json may
    list several, and tokenizer_config.json names one. `stop_id` is known already and stays the first.

    Raises: CheckpointError for a broken file.
    """
    config, generation, names = (read(place / f"{name}.json") for name in FILES)
    begin, end = (names.get(key) for key in ("bos_token", "eos_token"))
    begin, end = (name.get("content") if isinstance(name, dict) else name for name in (begin, end))
    begin, end = (tokenizer.token_to_id(name) if isinstance(name, str) else None for name in (begin, end))
    listed = [config.get("eos_token_id"), generation.get("eos_token_id")]
    stops = [stop_id, *(token for each in listed for token in (each if isinstance(each, list) else [each])), end]
    return [begin] if begin is not None else [], list(dict.fromkeys(token for token in stops if isinstance(token, int)))


def read(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings; empty where there is none.

    Raises: CheckpointError.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
    return settings if isinstance(settings, dict) else {}
