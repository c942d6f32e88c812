"""Text to hide numbers in: a file, or text of the corpus that is not in the training documents."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from lab.data.config import DataConfig, Synthetic
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.data.synthetic import SyntheticText
from lab.errors import DataError, brief

CHARS_PER_TOKEN = 16  # of text that is checked first; more than almost any tokenizer needs
FILLER_INDEX = 2**40  # beyond the documents of any synthetic corpus, numbered from 0
FILLER_TOKENS = 50_000
HELD_OUT_TOKENS = 2_000_000
KEPT, KEPT_BYTES = "haystack.txt", 10**6  # in a run folder
ESSAYS = "niah/data/PaulGrahamEssays.json of github.com/HKUNLP/STRING, the haystack of arXiv:2410.18745"


def load_haystack(path: str | None, data: DataConfig, tokenizer: Tokenizer, run: Path | None = None) -> str:
    """Read the haystack of a run: what its folder `run` keeps of it, if that is given and keeps one.

    Without a path: fresh filler for the synthetic corpus, the held-out documents for any other.

    Raises: DataError for a missing, broken or empty file.
    """
    kept = None if run is None else run / KEPT
    if kept is not None and kept.is_file():
        try:
            return kept.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{kept}: is damaged ({error}); restore it, or delete it and name a haystack") from error
    if path is not None:
        return read_text(Path(path))
    if isinstance(data.corpus, Synthetic):
        return SyntheticText(data.corpus).filler(FILLER_INDEX, FILLER_TOKENS)
    parts, tokens = [], 0
    for document in TokenStore.open(shard_folder(data), "held_out").documents():
        parts.append(tokenizer.decode(document.tolist()))
        tokens += len(document)
        if tokens >= HELD_OUT_TOKENS:
            break
    return "\n".join(parts)


def text_to_keep(path: str | None, data: DataConfig, tokenizer: Tokenizer, longest: int) -> str | None:
    """Read the haystack that a run folder keeps, so that the run is probed with the same text wherever it is copied.

    It is all of the haystack, or the first 1 MB of a corpus if that fills the longest test; None if it is larger.

    Raises: DataError.
    """
    text = load_haystack(path, data, tokenizer)
    kept = text.encode()[:KEPT_BYTES].decode(errors="ignore")
    if len(kept) == len(text):
        return text
    fills = path is None and len(tokenizer.encode(kept, add_special_tokens=False).ids) >= longest
    return kept if fills else None


def check_enough(text: str, tokenizer: Tokenizer, n_tokens: int, length: int, source: str) -> None:
    """Refuse a text that a test of `length` tokens, `n_tokens` of them from the text, would repeat.

    Raises: DataError, which begins with `source`, the setting that the text comes from.
    """
    for part in (text[: CHARS_PER_TOKEN * n_tokens], text):
        have = len(tokenizer.encode(part, add_special_tokens=False).ids)
        if have >= n_tokens:
            return
    rule = f"has {have:,} tokens, and a test of {length:,} holds {n_tokens:,} of them, some twice"
    raise DataError(f"{source}: {rule}; give a longer text, or shorter lengths")


def read_text(path: Path, field: str = "probe.haystack", text_field: str | None = None) -> str:
    """Read a file as one text.

    Raises: DataError, which names the setting that the path comes from.
    """
    return "\n".join(read_texts(path, field, text_field))


def read_texts(path: Path, field: str, text_field: str | None = None) -> list[str]:
    """Read a .txt file, the `text_field` of a .json object, or that of every line of a .jsonl file, each one text.

    The field is `text` where the command has no option for it.

    Raises: DataError, which names the setting that the path comes from.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{field}={path}: is no file; give a .txt, .json or .jsonl file")
        content = path.read_text(encoding="utf-8")
        rows = [line for line in content.split("\n") if line.strip()] if path.suffix == ".jsonl" else [content]
        texts = rows
        if path.suffix in (".json", ".jsonl"):
            texts = [text_of(row, text_field or "text", number) for number, row in enumerate(rows, start=1)]
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        remedy = f"give a .txt, .json or .jsonl file, such as {ESSAYS}"
        raise DataError(f"{field}={path}: {reason}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        remedy = "correct it" if text_field is None else "name its field with --text_field"
        rule = f"must hold JSON with `{text_field or 'text'}` ({error})"
        raise DataError(f"{field}={path}: {rule}; {remedy} or give a .txt") from error
    if not any(map(str.strip, texts)):
        raise DataError(f"{field}={path}: empty; give a file with text in it")
    return texts


def text_of(content: str, text_field: str, number: int) -> str:
    """Read the text of a JSON object, one of several.

    Raises: ValueError, which names the object's fields, or its number where it is broken.
    """
    try:
        row = json.loads(content)
    except json.JSONDecodeError as error:
        raise ValueError(f"row {number:,} is broken: {error.msg} at character {error.pos + 1}") from error
    text = row.get(text_field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        where = "" if number == 1 else f" in row {number:,}"
        fields = ", ".join(map(brief, row)) if isinstance(row, dict) else "none, as it is no object"
        raise ValueError(f"no text there{where}, its fields: {fields}")
    return text
