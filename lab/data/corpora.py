"""Corpora: each is a number of tasks, and each task yields documents, or the reason why one is dropped.

Files of the hub are listed once, then downloaded one at a time, read and deleted. Its client waits where the
hub answers 429 (too many requests), and repeats what a lost connection has cut off.
"""

import ast
import io
import json
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from glob import glob, has_magic
from itertools import chain, takewhile
from pathlib import Path

from lab.data.chat import Parts, Row, to_conversation
from lab.data.config import Conversations, DataConfig, OwnCorpus, Slimpajama, Stdlib, Text
from lab.data.synthetic import Generated
from lab.errors import DataError, MissingPackage, first_line

TASK_DOCUMENTS = 4000  # generated documents of one task
STDLIB_TASKS = 16
SLIMPAJAMA_TASKS = 512  # at most one for each file
OTHER_SPLIT = re.compile(r"(^|/)(validation|test)(/|-[^/]*$)")  # in names of files: not to be trained on
PLAIN = (".txt", ".md", ".py")  # one document each
ROWS = (".jsonl", ".jsonl.zst", ".parquet")  # a document per row


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

    `inputs` names what is read with its size, by which preparation detects a change between two calls. `left_out` is
    the number of files that belong to other splits.
    """

    n_tasks: int
    inputs: dict[str, int]
    read: Callable[[int], Iterator[Item]]
    left_out: int = 0


def open_corpus(config: DataConfig, listed: dict[str, int] | None = None) -> Reader:
    """Open the corpus of a config; `listed`, the inputs of an earlier call, saves listing its files again.

    Raises: DataError for a missing path or a folder without text files.
    """
    corpus = config.corpus
    if isinstance(corpus, Generated):
        indices = range(corpus.documents)
        tasks = [indices[start : start + TASK_DOCUMENTS] for start in indices[::TASK_DOCUMENTS]]
        return Reader(len(tasks), {}, lambda task: (TextDocument(corpus.document(k), corpus.name) for k in tasks[task]))
    if isinstance(corpus, Stdlib):
        root = Path(sysconfig.get_path("stdlib"))
        outside = {"site-packages", "dist-packages", "__pycache__"}
        sources = [path for path in root.rglob("*.py") if not outside & set(path.relative_to(root).parts)]
        return reader_of(sizes_of(sorted(sources), root), STDLIB_TASKS, lambda name: read_source(root / name, root))
    if isinstance(corpus, OwnCorpus):
        return Reader(1, {}, lambda task: (usable(text, corpus.name) for text in corpus.documents()))
    if isinstance(corpus, Slimpajama):
        files = listed or (list_hub(corpus.repository) if corpus.path is None else list_folder(corpus.path, ROWS))
        taken = {name: size for name, size in files.items() if not OTHER_SPLIT.search(name)}
        reader = reader_of(taken, SLIMPAJAMA_TASKS, partial(read_listed, corpus))
        return replace(reader, left_out=len(files) - len(taken))
    files = listed or list_folder(corpus.path, (*ROWS, *PLAIN) if isinstance(corpus, Text) else ROWS)
    one = isinstance(corpus, Conversations) and corpus.limit is not None  # task, which counts
    return reader_of(files, 1 if one else len(files), partial(read_listed, corpus))


def list_folder(place: str, suffixes: tuple[str, ...]) -> dict[str, int]:
    """List what data.corpus.path names, with sizes.

    Raises: DataError.
    """
    files = files_at(Path(place), suffixes)
    if not files:
        rule = f"no such file or folder, or none with {', '.join(suffixes)}"
        raise DataError(f"data.corpus.path={place}: {rule}; name one, or a pattern such as texts/*.md")
    for path in files:
        if not is_text(str(path)):
            raise DataError(f"data.corpus.path={place}: holds {path.name!a}, no name in UTF-8; rename the file")
    return sizes_of(files, root_of(place))


def root_of(place: str) -> Path:
    """Return the file or folder that data.corpus.path names, of a pattern the part without signs."""
    return Path(*takewhile(lambda part: not has_magic(part), Path(place).parts))


def files_at(place: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List the files with one of some suffixes that a file, a folder at all depths, or a pattern of these names.

    Raises: DataError for a link to nothing, or to a folder, which is not searched.
    """
    if has_magic(str(place)) and not place.exists():
        return sorted({file for match in glob(str(place), recursive=True) for file in files_at(Path(match), suffixes)})
    paths = sorted(place.rglob("*")) if place.is_dir() else [place]
    if links := [path for path in paths if path.is_symlink() and not path.is_file()]:
        raise DataError(f"{links[0]}: is a link to no file, so its texts would be left out; copy them, or delete it")
    return [path for path in paths if path.name.endswith(suffixes) and path.is_file()]


def is_text(text: str) -> bool:
    """Return whether UTF-8 can encode a text, which holds no lone surrogates of JSON or of a file's name."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def sizes_of(files: list[Path], root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in files}


def reader_of(inputs: dict[str, int], most: int, read: Callable[[str], Iterable[Item]]) -> Reader:
    """Divide files among at most so many tasks, every n-th file to each."""
    n_tasks = min(most, len(inputs))
    return Reader(n_tasks, inputs, lambda task: chain.from_iterable(map(read, [*inputs][task::n_tasks])))


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


def text_of(path: Path) -> str:
    """Read a file as text; bytes that are not UTF-8 make it unusable."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def usable(text: str, source: str, parts: Parts | None = None) -> Item:
    """Build a document, unless its text is empty or cannot be encoded."""
    if not text.strip():
        return "empty"
    if not is_text(text):
        return "not UTF-8"
    return TextDocument(text, sys.intern(source), parts)


def read_listed(corpus: Text | Slimpajama | Conversations, name: str) -> Iterator[Item]:
    """Read a file where data.corpus.path is, or else from the hub."""
    if isinstance(corpus, Slimpajama) and corpus.path is None:
        with downloaded(corpus.repository, name) as path:
            yield from read_file(path, corpus)
    else:
        yield from read_file(root_of(str(corpus.path)) / name, corpus)


def read_file(path: Path, corpus: Text | Slimpajama | Conversations) -> Iterator[Item]:
    """Read a file of plain text as one document, and any other row by row.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    if path.name.endswith(PLAIN):
        yield usable(text_of(path), path.stem)
        return
    try:
        for row in read_rows(path):
            yield row if isinstance(row, str) else document_of(row, corpus, path.stem)
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own are of these
        raise DataError(f"{path}: is truncated or corrupt ({first_line(error)}); download it again") from error


def read_rows(path: Path) -> Iterator[Row | str]:
    """Read the rows of a .parquet, .jsonl or .jsonl.zst file, or why one is none."""
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            yield from map(parsed, filter(bytes.strip, file))
        return
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage("pyarrow", f"reading {path.suffix} files", "data") from error
    if path.suffix == ".zst":
        stream = pyarrow.input_stream(str(path), compression="zstd")
        yield from map(parsed, filter(bytes.strip, io.BufferedReader(stream)))
        return
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
        yield from batch.to_pylist()


def parsed(line: bytes) -> Row | str:
    """Parse a JSON object."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of which the second is for a row nested too deep
        return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON"
    return row if isinstance(row, dict) else "not a JSON object"


def document_of(row: Row, corpus: Text | Slimpajama | Conversations, source: str) -> Item:
    """Convert a row to a document or a conversation; rows of SlimPajama name their source, those of mirrors do not."""
    if isinstance(corpus, Conversations):
        parts = to_conversation(row, corpus.template)
        return parts if isinstance(parts, str) else usable("".join(text for text, _ in parts), source, parts)
    if isinstance(corpus, Slimpajama):
        meta = row.get("meta")
        named = meta.get("redpajama_set_name") if isinstance(meta, dict) else None
        source = named if isinstance(named, str) else "unknown"
    text = row.get("text")
    return usable(text, source) if isinstance(text, str) else "no text in field 'text'"


def list_hub(repository: str) -> dict[str, int]:
    """List the files of rows of a data set: COMMIT/PATH, where its main branch is at that commit, and bytes.

    Raises: DataError.
    """
    from huggingface_hub import HfApi, RepoFile

    api = HfApi()
    try:
        commit = api.dataset_info(repository, expand=["sha"]).sha
        tree = api.list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
        sizes = {f"{commit}/{file.path}": file.size for file in tree if isinstance(file, RepoFile)}
    except Exception as error:  # the library raises many types for this one fault
        rule = f"cannot be listed on the hub ({type(error).__name__}: {first_line(error)})"
        remedy = "name a mirror, check the network, or give data.corpus.path, a folder of its files"
        raise DataError(f"data.corpus.repository={repository}: {rule}; {remedy}") from error
    if rows := {name: size for name, size in sorted(sizes.items()) if name.endswith(ROWS)}:
        return rows
    rule = f"holds no files with {', '.join(ROWS)} on the hub"
    raise DataError(f"data.corpus.repository={repository}: {rule}; name a mirror of SlimPajama")


@contextmanager
def downloaded(repository: str, name: str) -> Iterator[Path]:
    """Download a listed file for the body.

    Raises: DataError.
    """
    from huggingface_hub import hf_hub_download

    commit, _, path = name.partition("/")
    with tempfile.TemporaryDirectory(prefix="probe-lab-") as place:
        try:
            file = hf_hub_download(repository, path, repo_type="dataset", revision=commit, local_dir=place)
        except Exception as error:  # as many
            rule = f"{path} cannot be downloaded ({type(error).__name__}: {first_line(error)})"
            remedy = "run the same command again, which skips finished tasks"
            raise DataError(f"data.corpus.repository={repository}: {rule}; {remedy}") from error
        yield Path(file)
