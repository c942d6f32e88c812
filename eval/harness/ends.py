"""Which tokens begin and end a document, by the files of a Hugging Face folder.

A model of chats ends its answers with other tokens than its documents: config.json and generation_config.json may list
several, and tokenizer_config.json names one. An answer ends at any of them. Where the tokenizer puts nothing before a
text, the token that tokenizer_config.json names for it stands for an empty context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from eval.harness.encoding import Ends
from lab.errors import CheckpointError

SETTINGS = ("config.json", "generation_config.json")
NAMES = "tokenizer_config.json"


def ends_of(place: Path, tokenizer: Tokenizer, stop_id: int | None) -> Ends:
    """Read the ends of a folder; `stop_id` is the one that is known already, and stays the first.

    Raises: CheckpointError for a broken file.
    """
    stops: list[Any] = [stop_id]
    for name in SETTINGS:
        value = read(place / name).get("eos_token_id")
        stops += value if isinstance(value, list) else [value]
    names = read(place / NAMES)
    stops.append(token_of(names, "eos_token", tokenizer))
    begin = token_of(names, "bos_token", tokenizer)
    whole = dict.fromkeys(token for token in stops if isinstance(token, int))
    return Ends(() if begin is None else (begin,), tuple(whole))


def token_of(names: Mapping[str, Any], key: str, tokenizer: Tokenizer) -> int | None:
    """Find the token of a name, which is text or has it as its content."""
    name = names.get(key)
    text = name.get("content") if isinstance(name, Mapping) else name
    found: int | None = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return found


def read(path: Path) -> dict[str, Any]:
    """Read a file of settings; nothing where there is none.

    Raises: CheckpointError.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
    return settings if isinstance(settings, dict) else {}
