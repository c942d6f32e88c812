"""Text to hide numbers in: a file, or text of the corpus that is not in the training documents."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from lab.data.config import DataConfig, Synthetic
from lab.data.corpora import synthetic_text
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.errors import DataError

CHARS_PER_TOKEN = 16  # of text that is checked first; more than almost any tokenizer needs
FILLER_INDEX = 2**40  # beyond the documents of any synthetic corpus, numbered from 0
FILLER_TOKENS = 50_000
HELD_OUT_TOKENS = 2_000_000
ESSAYS = "niah/data/PaulGrahamEssays.json of github.com/HKUNLP/STRING, the haystack of arXiv:2410.18745"


def load_haystack(path: str | None, data: DataConfig, tokenizer: Tokenizer) -> str:
    """Read the haystack of a run.

    Without a path: fresh filler for the synthetic corpus, the held-out documents for any other.

    Raises: DataError for a missing, broken or empty file.
    """
    if path is not None:
        return read_text(Path(path))
    if isinstance(data.corpus, Synthetic):
        return synthetic_text(data.corpus).filler(FILLER_INDEX, FILLER_TOKENS)
    parts, tokens = [], 0
    for document in TokenStore.open(shard_folder(data), "held_out").documents():
        parts.append(tokenizer.decode(document.tolist()))
        tokens += len(document)
        if tokens >= HELD_OUT_TOKENS:
            break
    return "\n".join(parts)


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


def read_text(path: Path, field: str = "probe.haystack") -> str:
    """Read a .txt file, a .json object with `text`, or the `text` of every line of a .jsonl file.

    Raises: DataError, which names the setting that the path comes from.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{field}={path}: is no file; give a .txt, .json or .jsonl file")
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            content = "\n".join(json.loads(line)["text"] for line in content.split("\n") if line.strip())
        elif path.suffix == ".json":
            content = json.loads(content)["text"]
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        remedy = f"give a .txt, .json or .jsonl file, such as {ESSAYS}"
        raise DataError(f"{field}={path}: {reason}; {remedy}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{field}={path}: must hold JSON with `text` ({error!r}); correct it or give a .txt") from error
    if not isinstance(content, str) or not content.strip():
        raise DataError(f"{field}={path}: empty; give a file with text in it")
    return content
