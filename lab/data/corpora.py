"""Corpora: each is a number of tasks, and each task yields documents, or the reason why one is dropped."""

import ast
import io
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from lab.core.rows import Row
from lab.data.chat import Parts, to_conversation
from lab.data.config import Conversations, DataConfig, Dataset, OwnCorpus, Slimpajama, Stdlib, Text
from lab.data.streaming import Listing, list_dataset, stream_rows
from lab.data.synthetic import Synthetic
from lab.data.text_files import (
    PLAIN,
    ROWS,
    has_suffix,
    is_text,
    list_files,
    parsed,
    read_rows,
    root_of,
    sizes_of,
    text_of,
)

TASK_DOCUMENTS = 4000  # generated documents of one task
STDLIB_TASKS = 16
FILE_TASKS = 512  # of many files; of fewer, one for each


@dataclass(frozen=True)
class TextDocument:
    """A text and the name of its source; a conversation also in parts, each marked as scored or not."""

    text: str
    source: str
    parts: Parts | None = None


Item = TextDocument | str  # a document, or why there is none


@dataclass(frozen=True)
class Reader:
    """A corpus of `n_tasks`, each read by `read(task)`, the same on every call.

    `listing` names what is read with its size, by which preparation detects a change between two calls.
    """

    n_tasks: int
    listing: Listing
    read: Callable[[int], Iterator[Item]]


def open_corpus(config: DataConfig, listing: Listing | None = None) -> Reader:
    """Open the corpus of a config; the listing of an earlier call saves listing its files again.

    Raises: DataError for a missing path or a folder without text files.
    """
    corpus = config.corpus
    if isinstance(corpus, Slimpajama):
        corpus = corpus.dataset
    if isinstance(corpus, Synthetic):
        indices = range(corpus.documents)
        tasks = [indices[start : start + TASK_DOCUMENTS] for start in indices[::TASK_DOCUMENTS]]
        documents = lambda task: (TextDocument(corpus.document(k), corpus.name) for k in tasks[task])  # noqa: E731
        return Reader(len(tasks), Listing({}), documents)
    if isinstance(corpus, Stdlib):
        root = Path(sysconfig.get_path("stdlib"))
        outside = {"site-packages", "dist-packages", "__pycache__"}
        sources = [path for path in root.rglob("*.py") if not outside & set(path.relative_to(root).parts)]
        listing = Listing(sizes_of(sorted(sources), root))
        return reader_of(listing, STDLIB_TASKS, lambda name: read_source(root / name, root))
    if isinstance(corpus, OwnCorpus):
        return Reader(1, Listing({}), lambda task: (usable(text, corpus.name) for text in corpus.documents()))
    if isinstance(corpus, Dataset):
        listing = listing or list_dataset(corpus)
        return reader_of(listing, FILE_TASKS, partial(read_file, corpus, listing))
    listing = listing or Listing(*list_files(corpus.path, (*ROWS, *PLAIN) if isinstance(corpus, Text) else ROWS))
    is_counted = isinstance(corpus, Conversations) and corpus.limit is not None  # by one task
    return reader_of(listing, 1 if is_counted else FILE_TASKS, partial(read_file, corpus, listing))


def reader_of(listing: Listing, most: int, read: Callable[[str], Iterable[Item]]) -> Reader:
    """Divide files among at most `most` tasks, every n-th file to each."""
    n_tasks = min(most, len(listing.files))
    return Reader(n_tasks, listing, lambda task: chain.from_iterable(map(read, [*listing.files][task::n_tasks])))


def read_source(path: Path, root: Path) -> Iterator[Item]:
    """Cut a source file at its top-level definitions; a document's source is its package."""
    package = path.relative_to(root).parts[0].removesuffix(".py")
    return (usable(piece, package) for piece in cut_definitions(text_of(path)))


def cut_definitions(source: str) -> list[str]:
    """Split Python source before each top-level definition; source that does not parse stays whole."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return [source]
    starts = [0]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            starts.append(min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1)
    lines = io.StringIO(source, newline="").readlines()  # str.splitlines also splits at form feeds
    pieces = ["".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)])]
    return [piece for piece in pieces if piece.strip()]


def usable(text: str, source: str, parts: Parts | None = None) -> Item:
    """Build a document, unless its text is empty or cannot be encoded."""
    if not text.strip():
        return "empty"
    if not is_text(text):
        return "not UTF-8"
    return TextDocument(text, sys.intern(source), parts)


def read_file(corpus: Text | Dataset | Conversations, listing: Listing, name: str) -> Iterator[Item]:
    """Read a listed file of plain text as one document, and any other row by row.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    if isinstance(corpus, Dataset):
        for record in stream_rows(corpus, listing, name):
            source = corpus.label if corpus.source is None else value_of(record, corpus.source)
            yield document_of(record, corpus, source if isinstance(source, str) else "unknown")
        return
    path = root_of(corpus.path) / name
    if has_suffix(path, PLAIN):  # a corpus that is one file has the name "."
        yield usable(text_of(path), path.stem)
        return
    for row in read_rows(path):
        yield row if isinstance(row, str) else document_of(row, corpus, path.stem)


def document_of(row: Row, corpus: Text | Dataset | Conversations, source: str) -> Item:
    """Convert a row to a document or a conversation."""
    if isinstance(corpus, Conversations):
        parts = to_conversation(row, corpus.template)
        return parts if isinstance(parts, str) else usable("".join(text for text, _ in parts), source, parts)
    column = corpus.text if isinstance(corpus, Dataset) else "text"
    text = value_of(row, column)
    return usable(text, source) if isinstance(text, str) else f"no text in field {column!r}"


def value_of(row: Any, column: str) -> Any:
    """Return the value of a column, whose dots lead into nested ones; None if there is none.

    Example:
        >>> value_of({"meta": {"set": "web"}}, "meta.set"), value_of({"meta": 3}, "meta.set")
        ('web', None)
    """
    for key in column.split("."):
        if isinstance(row, str):  # the library keeps nested rows of several forms as JSON
            row = parsed(row.encode(errors="replace"))
        row = row.get(key) if isinstance(row, dict) else None
    return row
