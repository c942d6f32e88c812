"""Documents from text files: .txt, .jsonl, .jsonl.zst and .parquet; unusable ones are dropped with a reason."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.errors import DataError, MissingPackage, first_line

Row = dict[str, Any]


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


def read_rows(path: Path) -> Iterator[Row | DroppedDocument]:
    """Read the rows of a .parquet, .jsonl or .jsonl.zst file.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    try:
        yield from read_jsonl(path) if path.suffix == ".jsonl" else read_with_pyarrow(path)
    except (OSError, UnicodeDecodeError) as error:  # a parquet file may hold what is no text
        raise DataError(f"{path}: is truncated or corrupt ({first_line(error)}); download it again") from error


def read_with_pyarrow(path: Path) -> Iterator[Row | DroppedDocument]:
    """Read a .parquet file batch by batch, or a .jsonl.zst file line by line."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage("pyarrow", f"reading {path.suffix} files", "data") from error
    if path.suffix == ".zst":
        yield from parse_lines(io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd")))
        return
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise OSError(first_line(error)) from error


def read_jsonl(path: Path) -> Iterator[Row | DroppedDocument]:
    """Read a JSON object from every line."""
    with path.open("rb") as file:
        yield from parse_lines(file)


def parse_lines(lines: io.BufferedReader) -> Iterator[Row | DroppedDocument]:
    """Parse a JSON object from every line that is not blank."""
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
            yield row if isinstance(row, dict) else DroppedDocument("not a JSON object")
        except ValueError as error:
            yield DroppedDocument("not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON")


def to_document(row: Row, text_field: str, source: str) -> Document | DroppedDocument:
    """Build a document from a row."""
    text = row.get(text_field)
    if not isinstance(text, str):
        return DroppedDocument(f"no text in field {text_field!r}", tuple(row))
    return usable(text, source)


def usable(text: str, source: str) -> Document | DroppedDocument:
    """Drop an empty text, or one that UTF-8 cannot encode."""
    if not text.strip():
        return DroppedDocument("empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates, such as JSON's \\ud800
        return DroppedDocument("not UTF-8")
    return Document(text, sys.intern(source))
