"""Corpora: each is a number of tasks, and each task yields documents or the reason why one is dropped."""

from __future__ import annotations

import ast
import io
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from lab.data.config import Conversations, DataConfig, Slimpajama, Stdlib, Synthetic, Text
from lab.data.conversations import to_conversation
from lab.data.synthetic import SyntheticText
from lab.data.text_files import Document, DroppedDocument, Row, read_rows, read_txt, to_document
from lab.errors import DataError, MissingPackage, brief, first_line

TASK_DOCUMENTS = 4000  # synthetic documents of one task
STDLIB_TASKS = 16
SLIMPAJAMA_TASKS = 512  # at most one for each file
HUB_DATASET = "cerebras/SlimPajama-627B"
SHOWN_FIELDS, MOST_EXPLAINED = 20, 100_000  # fields that a message lists, and rows that it is about
SUFFIXES = (".jsonl", ".jsonl.zst", ".parquet", ".txt")
Item = Document | DroppedDocument


def open_corpus(config: DataConfig) -> SyntheticReader | StdlibReader | FilesReader | HubReader:
    """Open the corpus of a config: a reader of `n_tasks`, each read by `read(task)`, the same on every call.

    `inputs()` names what is read with its size, by which preparation detects a change between two calls.

    Raises: DataError for a missing path or a folder without text files.
    """
    corpus = config.corpus
    if isinstance(corpus, Synthetic):
        return SyntheticReader(corpus)
    if isinstance(corpus, Stdlib):
        return StdlibReader()
    if isinstance(corpus, Slimpajama) and corpus.path is None:
        return HubReader()
    return FilesReader(corpus)


class SyntheticReader:
    """The embedded probe corpus."""

    def __init__(self, corpus: Synthetic) -> None:
        self.documents, self.generator = corpus.documents, SyntheticText(corpus)
        self.n_tasks = -(-corpus.documents // TASK_DOCUMENTS)

    def inputs(self) -> dict[str, int]:
        """Return nothing: the documents depend on the config alone."""
        return {}

    def read(self, task: int) -> Iterator[Item]:
        """Generate the task's documents."""
        start = task * TASK_DOCUMENTS
        for text in self.generator.documents(start, min(start + TASK_DOCUMENTS, self.documents)):
            yield Document(text, "synthetic")


class StdlibReader:
    """The standard library's source files, cut at top-level definitions; a document's source is its package."""

    def __init__(self) -> None:
        self.root = Path(sysconfig.get_path("stdlib"))
        self.files = sorted(
            path
            for path in self.root.rglob("*.py")
            if not {"site-packages", "dist-packages", "__pycache__"} & set(path.relative_to(self.root).parts)
        )
        if not self.files:
            raise DataError(f"data.corpus.name=stdlib: no source files under {self.root}; use the text corpus")
        self.n_tasks = min(STDLIB_TASKS, len(self.files))

    def inputs(self) -> dict[str, int]:
        """Return the source files, which differ between Python versions."""
        return sizes_of(self.files, self.root)

    def read(self, task: int) -> Iterator[Item]:
        """Split every n-th file into documents."""
        for path in self.files[task :: self.n_tasks]:
            try:
                text = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                yield DroppedDocument("not UTF-8")
                continue
            for piece in cut_definitions(text):
                yield Document(piece, path.relative_to(self.root).parts[0].removesuffix(".py"))


def cut_definitions(source: str) -> list[str]:
    r"""Split Python source before each top-level definition; source that does not parse stays whole.

    Example:
        >>> cut_definitions("import os\n\ndef f():\n    pass\n")
        ['import os\n\n', 'def f():\n    pass\n']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return [source]
    starts = [0]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            starts.append(min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1)
    lines = source.splitlines(keepends=True)
    if len(lines) != source.count("\n") + (not source.endswith("\n")):  # splitlines also splits at form feeds
        lines = io.StringIO(source, newline="").readlines()
    pieces = ["".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)])]
    return [piece for piece in pieces if piece.strip()]


class FilesReader:
    """A file or a folder of .jsonl, .jsonl.zst, .parquet and .txt files."""

    def __init__(self, corpus: Text | Slimpajama | Conversations) -> None:
        assert corpus.path is not None, "a files reader needs a path"
        self.corpus, self.root = corpus, Path(corpus.path)
        if not self.root.exists():
            raise DataError(
                f"data.corpus.path={self.root}: no such file or folder; give one with {', '.join(SUFFIXES)}"
            )
        files = sorted(self.root.rglob("*")) if self.root.is_dir() else [self.root]
        suffixes = SUFFIXES[:-1] if isinstance(corpus, Conversations) else SUFFIXES  # a .txt holds no turns
        self.files = [path for path in files if path.name.endswith(suffixes) and path.is_file()]
        if not self.files:
            raise DataError(f"data.corpus.path={self.root}: holds no text files; put {', '.join(suffixes)} there")
        limited = isinstance(corpus, Conversations) and corpus.limit is not None  # by one task, which counts
        most = SLIMPAJAMA_TASKS if isinstance(corpus, Slimpajama) else len(self.files)
        self.n_tasks = 1 if limited else min(most, len(self.files))

    def inputs(self) -> dict[str, int]:
        """Return the files."""
        return sizes_of(self.files, self.root)

    def read(self, task: int) -> Iterator[Item]:
        """Read every n-th file."""
        for path in self.files[task :: self.n_tasks]:
            if path.suffix == ".txt":
                yield read_txt(path)
                continue
            for row in read_rows(path):
                yield row if isinstance(row, DroppedDocument) else self.document(row, path.stem)

    def document(self, row: Row, default: str) -> Item:
        """Convert a row to a document or a conversation."""
        if isinstance(self.corpus, Conversations):
            return to_conversation(row, default)
        if isinstance(self.corpus, Slimpajama):
            return slimpajama_document(row, default)
        return to_document(row, "text", default)


def slimpajama_document(row: Row, default: str) -> Item:
    """Build a document of SlimPajama, whose rows name their source."""
    meta = row.get("meta")
    source = meta.get("redpajama_set_name") if isinstance(meta, dict) else None
    return to_document(row, "text", source if isinstance(source, str) else default)


def why_empty(config: DataConfig) -> str:
    """Explain why a corpus has no document to train on: what its rows lack, and which fields they have."""
    reader = open_corpus(config)
    items = list(islice(chain.from_iterable(map(reader.read, range(reader.n_tasks))), MOST_EXPLAINED))
    dropped = [item for item in items if isinstance(item, DroppedDocument)]
    if len(dropped) < len(items):
        return "data.corpus: empty, all documents are held out; lower data.held_out_frac or give more text"
    counts = ", ".join(f"{n:,} {reason}" for reason, n in Counter(item.reason for item in dropped).most_common())
    fields = ", ".join(list(dict.fromkeys(brief(name) for item in dropped for name in item.fields))[:SHOWN_FIELDS])
    remedy = f"rename one of the fields {fields} to text" if fields else "check its path"
    return f"data.corpus: empty, no document has text ({counts or 'there are no rows'}); {remedy}"


class HubReader:
    """SlimPajama streamed through the datasets package, cut into tasks by its files."""

    def __init__(self) -> None:
        self.stream = open_stream(HUB_DATASET)
        self.n_tasks = min(SLIMPAJAMA_TASKS, self.stream.num_shards)

    def inputs(self) -> dict[str, int]:
        """Return the dataset with its number of files."""
        return {HUB_DATASET: self.stream.num_shards}

    def read(self, task: int) -> Iterator[Item]:
        """Stream the task's part."""
        try:
            for row in self.stream.shard(num_shards=self.n_tasks, index=task):
                yield slimpajama_document(row, "unknown")
        except Exception as error:  # the library raises many types for a broken or unreachable file
            raise DataError(f"{HUB_DATASET}: failed while streaming ({first_line(error)}); run it again") from error


@lru_cache(maxsize=1)
def open_stream(name: str) -> Any:
    """List a dataset's files, once for all tasks of a process.

    Raises: DataError, MissingPackage.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingPackage("datasets", "streaming data.corpus.name=slimpajama", "data") from error
    try:
        return datasets.load_dataset(name, split="train", streaming=True)
    except Exception as error:  # the library raises many types for this one fault
        raise DataError(
            f"data.corpus.name=slimpajama: {name} cannot be opened ({first_line(error)}); check the network, or give "
            "data.corpus.path, a folder of its files"
        ) from error


def sizes_of(files: list[Path], root: Path) -> dict[str, int]:
    """List the size in bytes of every file, by its path below `root`."""
    return {str(path.relative_to(root)): path.stat().st_size for path in files}
