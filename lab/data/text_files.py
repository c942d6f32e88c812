"""Files of text on disk: which files of a path are read, and the rows of each; skipped files are counted by type.

A line that cannot be used is skipped with its reason, where a library would end with the whole file.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from glob import glob, has_magic
from itertools import chain, takewhile
from pathlib import Path
from typing import IO, Any

from lab.core.command import show
from lab.core.errors import DataError, MissingPackage, first_line
from lab.core.files import on_disk, walk
from lab.core.launch import read_launch
from lab.core.types import Row

Options = dict[str, Any]  # of a reader, by name
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


def add_compressions(*suffixes: str) -> tuple[str, ...]:
    """List suffixes without and with each compression's."""
    return tuple(suffix + packed for suffix in suffixes for packed in ("", *COMPRESSIONS))


PLAIN = add_compressions(".txt", ".md", ".py")  # one document each
LINES = add_compressions(".jsonl", ".ndjson")
ROWS = (*LINES, ".parquet")  # one document per row
OBJECTS = add_compressions(".json")  # one row each
ESSAYS = "https://github.com/HKUNLP/STRING/raw/main/niah/data/PaulGrahamEssays.json"  # of arXiv:2410.18745
NOT_UTF8 = "not UTF-8"
# readers of compressed files and of .parquet raise all of these for a truncated or corrupt file
BROKEN = (OSError, ValueError, EOFError, NotImplementedError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Listing:
    """The files of a corpus: name and bytes of each, how many are skipped by type, and what reads them.

    Names begin at `root`, which is None for files of the hub and for generated documents. A name of the hub is
    COMMIT/PATH. `module` names a builder of the datasets library and `options` its settings; both are empty for files
    that the lab reads.
    """

    files: dict[str, int]
    skipped: Counter[str] = field(default_factory=Counter)
    root: Path | None = None
    module: str = ""
    options: Options = field(default_factory=dict)


def has_suffix(path: Path | str, suffixes: tuple[str, ...]) -> bool:
    return str(path).lower().endswith(suffixes)


def list_files(path: str, suffixes: tuple[str, ...]) -> Listing:
    """List the files that data.corpus.path names, and count those that are skipped.

    Raises: DataError.
    """
    files, skipped = find_files(Path(path), suffixes)
    root = find_root(path)
    if not files:
        rule = "no such file or folder"
        if root.exists():
            rule = f"no file to read, but {describe_skipped(skipped) or 'nothing else'}"
        raise DataError(
            f"data.corpus.path={path}: {rule}; name one, or a pattern such as texts/*.md; data.corpus.name=dataset "
            "reads other formats"
        )
    for file in files:
        if not is_text(str(file)):
            raise DataError(f"data.corpus.path={path}: contains {file.name!a}, no name in UTF-8; rename the file")
    return Listing(read_sizes(files, root), skipped, root)


def find_root(path: Path | str) -> Path:
    """Return the file or folder that a path names; for a pattern, the part before its wildcards."""
    path = Path(path)
    if path.exists():  # a name may contain brackets, which are wildcards as well
        return path
    return Path(*takewhile(lambda part: not has_magic(part), path.parts))


def expand_pattern(path: Path) -> list[Path]:
    """List what matches a pattern, or the path itself; glob alone would skip a folder that cannot be listed.

    Raises: OSError.
    """
    root = find_root(path)
    if path == root:
        return [path]
    for above in path.parents:
        if above.is_relative_to(root):
            for folder in filter(os.path.isdir, glob(str(above), recursive=True)):
                os.listdir(f"{folder}/.")  # raises an error if it cannot be listed or not be entered
    return [Path(name) for name in glob(str(path), recursive=True)]


def find_files(path: Path, suffixes: tuple[str, ...]) -> tuple[list[Path], Counter[str]]:
    """Find files with one of some suffixes: a path is a file, a folder that is searched at all depths, or a pattern.

    All others are counted by their type. Tools keep copies of texts in hidden folders, which are skipped and counted.

    Raises: DiskError for a folder that cannot be listed, DataError for a link to nothing or, below the path, to a
        folder, which is not searched.
    """
    root = find_root(path)
    with on_disk():
        candidates = {*expand_pattern(path)}  # a pattern may match both a folder and files in it
        for start in [*filter(Path.is_dir, candidates)]:
            candidates.update(walk(start))
        for above in {*chain.from_iterable(candidate.parents for candidate in candidates)}:
            if root in above.parents and above.is_symlink():  # glob follows links
                candidates.add(above)
        if root.is_dir():
            candidates.discard(root)  # which may be a link
    files, skipped = [], Counter[str]()
    # sorted, because the order of files decides which documents a task reads, on every machine
    for candidate in sorted(candidates):
        if is_hidden(candidate.relative_to(root)):
            skipped["hidden"] += candidate.is_file()
        elif candidate.is_file():
            if has_suffix(candidate, suffixes):
                files.append(candidate)
            else:
                skipped[type_of(candidate)] += 1
        elif candidate.is_symlink():
            raise DataError(f"{candidate}: is a link to no file, so its texts would be lost; copy them, or delete it")
        else:
            skipped["named pipes"] += candidate.is_fifo()
    return files, +skipped  # without types of which there is none


def is_hidden(path: Path) -> bool:
    """Return whether a relative path is a hidden file, or is in a folder such as .git or __pycache__.

    Example:
        >>> [is_hidden(Path(path)) for path in ("a.txt", "__init__.py", "a/.b.txt", ".a/b.txt", "__a__/b.txt")]
        [False, False, True, True, True]
    """
    return path.name.startswith(".") or any(part.startswith((".", "__")) for part in path.parts[:-1])


def type_of(path: Path) -> str:
    """Return a file's suffix, after the suffix of its content if it is compressed.

    Example:
        >>> [type_of(Path(path)) for path in ("a.CSV", "a.b.json.gz", "README")]
        ['.csv', '.json.gz', 'without a suffix']
    """
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        suffix = Path(path.stem).suffix.lower() + suffix
    return suffix or "without a suffix"


def describe_skipped(skipped: Counter[str]) -> str:
    """Write how many files of each type are skipped.

    Example:
        >>> describe_skipped(Counter({".csv": 1200, "hidden": 1}))
        '1,200 .csv, 1 hidden'
    """
    return ", ".join(f"{n:,} {name}" for name, n in sorted(skipped.items()) if n)


def read_sizes(files: list[Path], root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in files}


def is_text(text: str) -> bool:
    """Return whether UTF-8 can encode a text: lone surrogates, from JSON or from a file's name, have no encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read its content, decompressed.

    Raises: DataError for a truncated or broken file, DiskError for one that cannot be opened, MissingPackage.
    """
    suffix = path.suffix.lower()
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": open_zst}
    try:
        with on_disk(), openers.get(suffix, open)(path, "rb") as file:
            if suffix in openers and not path.stat().st_size:
                raise EOFError("0 bytes")
            yield file
    except BROKEN as error:
        raise DataError(f"{path}: is truncated or corrupt ({first_line(error)}); download it again") from error


def open_zst(path: Path, mode: str) -> IO[bytes]:
    """Open a .zst file by pyarrow, which raises an error for a truncated file.

    Raises: MissingPackage.
    """
    stream: Any = import_pyarrow(".zst").input_stream(path.open("rb"), compression="zstd")
    return io.BufferedReader(stream)


def import_pyarrow(suffix: str) -> Any:
    """Import pyarrow to read files with a suffix.

    Raises: MissingPackage.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage("pyarrow", f"reading {suffix} files", "data") from error
    return pyarrow


def read_file_rows(path: Path) -> Iterator[tuple[int, Row | str]]:
    """Read the rows of a file with their line numbers; a string is the reason why there is no row.

    A file of plain text is one row with its content in `text`, at line 0.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    with open_decompressed(path) as file:
        if has_suffix(path, LINES):
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, parse_object(line)
        elif has_suffix(path, OBJECTS):
            yield 1, parse_object(file.read())
        elif has_suffix(path, (".parquet",)):
            batches = import_pyarrow(path.suffix).parquet.ParquetFile(file).iter_batches(batch_size=1024)
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)
        else:
            # bytes that are no UTF-8 become lone surrogates, by which `is_text` finds them
            yield 0, {"text": file.read().decode("utf-8-sig", "surrogateescape")}


def parse_object(line: bytes) -> Row | str:
    """Parse a JSON object, or return the reason why a line is none."""
    try:
        row = json.loads(line.decode("utf-8-sig"))  # without a byte order mark
    except UnicodeDecodeError:
        return NOT_UTF8
    except (ValueError, RecursionError):  # RecursionError: a row that is nested too deep
        return "not JSON"
    return row if isinstance(row, dict) else "not a JSON object"


def read_texts(path: Path, field: str) -> list[str]:
    """Read the texts of a file, of a folder's files, or of those that match a pattern.

    A text is a .txt, .md or .py file, or the field `text` of a .json object or of a row of a .jsonl or .parquet file.
    Other files of a folder are skipped and counted in a line.

    Raises: DataError, which names the setting that the path comes from.
    """
    types = f"give a .txt, .md, .py, .json or .jsonl file with `text`, such as by curl -LO {ESSAYS}"
    files, skipped = [path], Counter[str]()
    if not path.is_file():
        files, skipped = find_files(path, (*PLAIN, *ROWS, *OBJECTS))
    if not files:
        raise DataError(f"{field}={path}: no such file ({describe_skipped(skipped) or 'nothing'} there); {types}")
    if skipped:
        report_skipped(f"{field}={path}: files read: {len(files):,}; skipped: {describe_skipped(skipped)}")
    texts: list[str] = []
    for file in files:
        for number, row in read_file_rows(file):
            text = row.get("text") if isinstance(row, dict) else None
            if not isinstance(text, str) or not is_text(text):
                line = f" in line {number:,}" if number else ""
                raise DataError(f"{field}={file}: no text in UTF-8{line}; {types}")
            if number == 0:  # plain text, whose line breaks differ between systems
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            if text.strip() or number:
                texts.append(text)
    if not any(text.strip() for text in texts):
        raise DataError(f"{field}={path}: contains no text; {types}")
    return texts


@cache
def report_skipped(line: str) -> None:
    """Print which files are skipped, once: a command may read its text more than once."""
    if read_launch().is_first:
        show(line, error=True)
