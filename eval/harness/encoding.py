"""Texts of requests as the model's own tokens, and answers as texts.

A context begins with the tokens that begin a document. Text that spells a special token, as <eos>, is text, unless a
chat template wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.engine.cases import Writer
from eval.engine.subject import Subject
from lab.data.tokenizer import check_ids, special_ends
from lab.errors import ConfigError, DataError, MissingPackage
from lab.model.huggingface.config import read_json, token_text

Ids = list[int]
FILES = ("config", "generation_config", "tokenizer_config")
SPECIAL = 4  # special tokens, which have no text, within a stop string


class Encoder:
    """Encodes and decodes for a model opened in a folder; `templated` contexts come from a chat template.

    Raises: DataError for a tokenizer that neither begins nor ends a document; CheckpointError for a broken file.
    """

    def __init__(self, subject: Subject, folder: Path, *, templated: bool = False) -> None:
        self.writer, self.vocab_size, self.templated = Writer(subject.tokenizer), subject.vocab_size, templated
        self.tokenizer = self.writer.tokenizer
        self.tokenizer.encode_special_tokens = not templated
        self.begin_ids = special_ends(subject.tokenizer)[0]
        named, self.stop_ids = self.ends(folder, subject.stop_id)
        prefix = [*self.begin_ids[-1:], *named, *self.stop_ids]
        if not prefix:
            raise DataError("tokenizer.json: no token begins or ends a document; set eos_token_id in config.json")
        self.prefix_id = prefix[0]  # used for an empty context
        texts = (self.tokenizer.decode(ids[:1], skip_special_tokens=False) for ids in (prefix, self.stop_ids))
        self.begin_text, self.end_text = texts

    def ends(self, folder: Path, stop_id: int | None) -> tuple[Ids, Ids]:
        """Read which tokens begin and end a document from the files of a Hugging Face folder; a run folder has none.

        Each file may add tokens that end one, as those of a chat's turns; `stop_id` is known and stays the first.
        """
        config, generation, names = (read_json(folder / f"{name}.json") for name in FILES)
        begin, end = (self.tokenizer.token_to_id(token_text(names, key) or "") for key in ("bos_token", "eos_token"))
        listed = [stop_id, config.get("eos_token_id"), generation.get("eos_token_id"), end]
        stops = dict.fromkeys(token for each in listed for token in (each if isinstance(each, list) else [each]))
        return [begin] if begin is not None else [], [token for token in stops if token is not None]

    def encode(self, text: str, *, bare: bool = False) -> Ids:
        """Encode a text with the tokens that begin a document unless it has them; `bare`, without them.

        Raises: DataError for a tokenizer with more tokens than the model.
        """
        if bare or (self.templated and text.startswith(self.begin_text)):
            ids: Ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        else:
            ids = self.writer.encode(text) or list(self.begin_ids)
        check_ids(ids, self.vocab_size)
        return ids

    def decode(self, ids: Ids, stops: Sequence[str] = ()) -> str:
        """Decode tokens up to the first one that ends a document, or the first stop string."""
        end = next((place for place, token in enumerate(ids) if token in self.stop_ids), len(ids))
        text: str = self.tokenizer.decode(ids[:end])
        for stop in stops:  # in this order, as the harness does, which matters where two of them overlap
            text = text.partition(stop)[0]
        return text

    def ended(self, answers: Tensor, numbers: Tensor | None = None, *, stops: Sequence[str]) -> Tensor:
        """Find which answers end, with a token that ends a document or a text that holds a stop string.

        A stop string ends in the newest token and has no more tokens of text than bytes, so that a whole answer is
        decoded only where its last tokens hold one.

        Shapes: answers int64 (rows, n); returns bool (rows,).
        """
        reach = max((len(stop.encode()) for stop in stops), default=0) + SPECIAL

        def holds_stop(ids: Ids) -> bool:
            text = self.decode(ids)
            return any(stop in text for stop in stops)

        rows = answers.tolist()
        return torch.tensor([r[-1] in self.stop_ids or (holds_stop(r[-reach:]) and holds_stop(r)) for r in rows])


def chat_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a Hugging Face folder that has a chat template.

    Raises: MissingPackage; ConfigError for a folder that has none.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingPackage("transformers", "--apply_chat_template", "hf") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if tokenizer.chat_template:
            return tokenizer
    except (OSError, ValueError, KeyError):
        pass  # no tokenizer that transformers can open
    fault = "has no chat template (chat_template.jinja); leave it out, or use a model that was trained on chats"
    raise ConfigError(f"--apply_chat_template: {folder} {fault}")
