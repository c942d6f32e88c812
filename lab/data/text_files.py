"""Documents from text files: .txt, .jsonl, .jsonl.zst and .parquet; unusable ones are dropped with a reason."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from lab.errors import DataError, MissingPackage, first_line

READ_BYTES = 2**20


@dataclass(frozen=True)
class Document:
    """A text and the name of its source; a conversation also in parts, each marked as scored or not."""

    text: str
    source: str
    parts: tuple[tuple[str, bool], ...] | None = None


@dataclass(frozen=True)
class DroppedDocument:
    """A document that cannot be used, and why; dropped documents are counted and reported.

    `fields` are those of a row without the one that was asked for.
    """

    reason: str
    fields: tuple[str, ...] = field(default=(), compare=False)


def read_txt(path: Path) -> Document | DroppedDocument:
    """Read one file as one document."""
    try:
        return usable(path.read_bytes().decode("utf-8"), path.stem)
    except UnicodeDecodeError:
        return DroppedDocument("not UTF-8")


def read_jsonl(path: Path) -> Iterator[dict[str, Any] | DroppedDocument]:
    """Read a JSON object from every line, decompressing .zst files."""
    with path.open("rb") as raw:
        lines = raw if path.suffix != ".zst" else decompressed(raw)
        try:
            for line in lines:
                if line.strip():
                    yield parse_line(line)
        except (OSError, EOFError) as error:
            raise DataError(f"{path}: is truncated or corrupt ({error}); download it again") from error


def decompressed(raw: Any) -> Iterator[bytes]:
    """Read lines of a zstandard file; one whose last frame does not end is truncated."""
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackage("zstandard", "reading .zst files", "data") from error
    rest, frame, fed = b"", zstandard.ZstdDecompressor().decompressobj(), False
    try:
        while chunk := raw.read(READ_BYTES):
            while chunk:
                fed = True
                *lines, rest = (rest + frame.decompress(chunk)).split(b"\n")
                yield from lines
                chunk = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame, fed = zstandard.ZstdDecompressor().decompressobj(), False
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error
    if fed:
        raise EOFError("its last frame has no end")
    yield rest


def parse_line(line: bytes) -> dict[str, Any] | DroppedDocument:
    """Parse one line of JSON."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return DroppedDocument("not UTF-8")
    except ValueError:
        return DroppedDocument("not JSON")
    return row if isinstance(row, dict) else DroppedDocument("not a JSON object")


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Read a parquet file's rows batch by batch."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage("pyarrow", "reading .parquet files", "data") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a valid parquet file ({first_line(error)}); write it again") from error


def to_document(
    row: dict[str, Any], text_field: str, source_field: str | None, default: str
) -> Document | DroppedDocument:
    """Build a document from the text and source fields of a row."""
    text = row.get(text_field)
    if not isinstance(text, str):
        return DroppedDocument(f"no text in field {text_field!r}", tuple(row))
    source = value_at(row, source_field) if source_field else None
    return usable(text, source if isinstance(source, str) else default)


def value_at(row: Any, name: str) -> Any:
    """Look up a dotted field of a row; None where it is missing.

    Example:
        >>> value_at({"meta": {"from": "web"}}, "meta.from"), value_at({"meta": 3}, "meta.from")
        ('web', None)
    """
    for key in name.split("."):
        row = row.get(key) if isinstance(row, dict) else None
    return row


ROLES = {"human": "USER", "user": "USER", "gpt": "ASSISTANT", "assistant": "ASSISTANT", "system": "SYSTEM"}


def to_conversation(row: dict[str, Any], source: str) -> Document | DroppedDocument:
    """Build a conversation from a row in ShareGPT's format; only the assistant's turns are scored.

    Every turn ends with a line break, which is scored after a response, so that a model learns to stop.

    Example:
        >>> turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
        >>> [(text.split(), scored) for text, scored in to_conversation({"conversations": turns}, "part").parts]
        [(['USER:', 'Hi', 'ASSISTANT:'], False), (['Hello.'], True)]
    """
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return DroppedDocument("no turns in field 'conversations'")
    parts: list[tuple[str, bool]] = []
    for turn in turns:
        role, text = ROLES.get(str(turn.get("from"))), turn.get("value")
        if role is None or not isinstance(text, str):
            return DroppedDocument("a turn without a known 'from' and a text 'value'")
        if role == "ASSISTANT" and text.strip():
            parts += [("ASSISTANT:", False), (f" {text.strip()}\n", True)]
        else:
            parts.append((f"{role}: {text.strip()}\n", False))
    runs = groupby(parts, key=itemgetter(1))  # a response is never next to another
    merged = [("".join(text for text, _ in run), scored) for scored, run in runs]
    if not any(scored for _, scored in merged):
        return DroppedDocument("a conversation without a response")
    document = usable("".join(text for text, _ in merged), source)
    if isinstance(document, DroppedDocument):
        return document
    return Document(document.text, document.source, tuple(merged))


def usable(text: str, source: str) -> Document | DroppedDocument:
    """Drop an empty text, or one that UTF-8 cannot encode."""
    if not text.strip():
        return DroppedDocument("empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates, such as JSON's \\ud800
        return DroppedDocument("not UTF-8")
    return Document(text, sys.intern(source))
