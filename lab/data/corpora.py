"""Corpora: each consists of numbered tasks, and each task yields documents, or the reason why one is dropped."""

import ast
import io
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from lab.core.errors import DataError
from lab.core.types import Row
from lab.data.chat import Parts, join_parts, to_conversation
from lab.data.config import Conversations, DataConfig, Dataset, OwnCorpus, Stdlib, Text
from lab.data.streaming import list_dataset, stream_rows
from lab.data.synthetic import Synthetic
from lab.data.text_files import (
    NOT_UTF8,
    PLAIN,
    ROWS,
    Listing,
    find_root,
    has_suffix,
    is_text,
    list_files,
    read_file_rows,
    read_sizes,
    type_of,
)

TASK_DOCUMENTS = 4000  # generated documents of one task


class TextDocument(NamedTuple):
    """A text and the name of its source; a conversation also in parts, each marked as scored or not."""

    text: str
    source: str
    parts: Parts | None = None


Item = TextDocument | str  # a document, or why there is none


class Reader(NamedTuple):
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
    corpus = config.dataset or config.corpus
    if isinstance(corpus, Synthetic):
        n_tasks = -(-corpus.documents // TASK_DOCUMENTS)
        return Reader(n_tasks, Listing({}), partial(generate, corpus))
    if isinstance(corpus, OwnCorpus):
        return Reader(1, Listing({}), lambda _: (make_document(text, corpus.name) for text in corpus.documents()))
    read: Callable[[str], Iterator[Item]]
    most = 512  # tasks; with fewer files, one task for each
    if isinstance(corpus, Stdlib):
        root = Path(sysconfig.get_path("stdlib"))
        others = {"site-packages", "dist-packages", "__pycache__"}
        sources = [path for path in sorted(root.rglob("*.py")) if others.isdisjoint(path.relative_to(root).parts)]
        # without a root in the listing the files are not hashed: they change with Python's version alone
        listing, most = Listing(read_sizes(sources, root)), 16
        read = partial(read_module, root)
    elif isinstance(corpus, Dataset):
        listing = listing or list_dataset(corpus)
        read = partial(read_dataset_file, corpus, listing)
    else:
        assert isinstance(corpus, Text | Conversations), "the other corpora are above"
        suffixes = (*ROWS, *PLAIN) if isinstance(corpus, Text) else ROWS
        listing = listing or list_files(corpus.path, suffixes)
        read = partial(read_file, corpus, find_root(corpus.path))
        if isinstance(corpus, Conversations) and corpus.limit is not None:
            most = 1  # the limit counts the samples of the corpus, which only one task knows
    names = list(listing.files)
    n_tasks = min(most, len(names))

    def read_task(task: int) -> Iterator[Item]:
        for name in names[task::n_tasks]:  # from all folders
            item: Item = ""
            is_used = False
            for item in read(name):
                is_used |= isinstance(item, TextDocument)
                yield item
            # a file that is one empty document, such as __init__.py, is no surprise
            if not (is_used or (has_suffix(name, PLAIN) and item in ("", "empty"))):
                yield f"no document in {name}"

    return Reader(n_tasks, listing, read_task)


def generate(corpus: Synthetic, task: int) -> Iterator[Item]:
    for index in range(corpus.documents)[task * TASK_DOCUMENTS : (task + 1) * TASK_DOCUMENTS]:
        yield TextDocument(corpus.document(index), corpus.name)


def read_module(root: Path, name: str) -> Iterator[Item]:
    """Cut a source file at its top-level definitions; a document's source is its package."""
    package = Path(name).parts[0].removesuffix(".py")
    for piece in cut_definitions((root / name).read_bytes().decode("utf-8-sig", "surrogateescape")):
        yield make_document(piece, package)


def cut_definitions(source: str) -> list[str]:
    """Split Python source before each top-level definition; source that does not parse stays whole."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return [source]
    starts = [0]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # the line number of a definition is that of its name, and decorators precede it
            starts.append(min(part.lineno for part in (node, *node.decorator_list)) - 1)
    lines = io.StringIO(source, newline="").readlines()  # str.splitlines also splits at form feeds
    pieces = ["".join(lines[begin:end]) for begin, end in pairwise([*starts, len(lines)])]
    return [piece for piece in pieces if piece.strip()]


def make_document(text: object, source: str, parts: Parts | None = None, *, field: str = "text") -> Item:
    """Build a document, or return the reason why its text, the value of a field, is not usable."""
    if not isinstance(text, str):
        return f"no text in field {field!r}"
    if not text.strip():
        return "empty"
    if not is_text(text):
        return NOT_UTF8
    # few sources name millions of documents: interning keeps one copy of each name
    return TextDocument(text, sys.intern(source), parts)


def read_file(corpus: Text | Conversations, root: Path, name: str) -> Iterator[Item]:
    """Read the rows of a file below `root` as documents. Their source is the file's path without its suffixes.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    path = root / name
    # a corpus that is one file has the name "." in its listing
    source = str(Path(name) if path != root else path.name)[: -len(type_of(path))]
    for _, row in read_file_rows(path):
        yield row if isinstance(row, str) else to_document(row, corpus, source)


def to_document(row: Row, corpus: Text | Conversations, source: str) -> Item:
    """Convert a row to a document or a conversation."""
    if isinstance(corpus, Text):
        return make_document(row.get("text"), source)
    parts = to_conversation(row, corpus.template)
    if isinstance(parts, str):
        return parts
    return make_document(join_parts(parts), source, parts)


def read_dataset_file(corpus: Dataset, listing: Listing, name: str) -> Iterator[Item]:
    """Read the rows of a listed file of a data set as documents, each with the source that its row names.

    Raises: DataError, also for a column that no row of the file has.
    """
    row: Row = {}
    found: set[str | None] = {None}  # the columns that some row has

    def find(column: str) -> Any:
        with suppress(KeyError, TypeError):
            value = reduce(getitem, column.split("."), row)
            found.add(column)
            return value

    for line in stream_rows(corpus, listing, name):
        if isinstance(line, str):
            yield line
            continue
        row = line
        source = corpus.label if corpus.source is None else find(corpus.source)
        yield make_document(find(corpus.text), "unknown" if source is None else str(source), field=corpus.text)
    for setting, column in (("text", corpus.text), ("source", corpus.source)):
        if row and column not in found:
            raise DataError(f"data.corpus.{setting}={column}: no such column in {name}; use one of: {', '.join(row)}")
