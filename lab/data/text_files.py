"""Files of text on disk: which of a path's files are read, and their rows; what is skipped is counted by its type.

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
from functools import cache
from glob import glob, has_magic
from itertools import product, takewhile
from pathlib import Path
from typing import IO, Any

from lab.core.command import show
from lab.core.errors import DataError, MissingPackage, first_line
from lab.core.launch import read_launch
from lab.core.rows import Row

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
PLAIN = tuple(map("".join, product((".txt", ".md", ".py"), ("", *COMPRESSIONS))))  # one document each
LINES = tuple(map("".join, product((".jsonl", ".ndjson"), ("", *COMPRESSIONS))))  # a document per row, as in a table
ROWS = (*LINES, ".parquet")
OBJECTS = tuple(f".json{suffix}" for suffix in ("", *COMPRESSIONS))  # one row each
ESSAYS = "https://github.com/HKUNLP/STRING/raw/main/niah/data/PaulGrahamEssays.json"  # of arXiv:2410.18745
HIDDEN = "hidden"
BROKEN = (OSError, ValueError, EOFError, NotImplementedError, zlib.error, lzma.LZMAError)  # what readers raise


def has_suffix(path: Path | str, suffixes: tuple[str, ...]) -> bool:
    return str(path).lower().endswith(suffixes)


def list_files(place: str, suffixes: tuple[str, ...]) -> tuple[dict[str, int], Counter[str]]:
    """List the files that data.corpus.path names, with sizes, and count those that are skipped.

    Raises: DataError.
    """
    files, skipped = find_files(Path(place), suffixes)
    if not files:
        kinds = dict.fromkeys(f".{suffix.split('.')[1]}" for suffix in suffixes)
        rule = f"no {', '.join(kinds)} in it" if root_of(place).exists() else "no such file or folder"
        if skipped:
            rule = f"{rule}, but {describe(skipped)}"
        remedy = "name one, or a pattern such as texts/*.md; data.corpus.name=dataset reads other formats"
        raise DataError(f"data.corpus.path={place}: {rule}; {remedy}")
    for path in files:
        if not is_text(str(path)):
            raise DataError(f"data.corpus.path={place}: holds {path.name!a}, no name in UTF-8; rename the file")
    return sizes_of(files, root_of(place)), skipped


def root_of(place: str) -> Path:
    """Return the file or folder that data.corpus.path names, of a pattern the part without signs."""
    if Path(place).exists():  # a name with brackets
        return Path(place)
    return Path(*takewhile(lambda part: not has_magic(part), Path(place).parts))


def find_files(place: Path, suffixes: tuple[str, ...]) -> tuple[list[Path], Counter[str]]:
    """Find the files with one of some suffixes that a file, a folder at all depths, or a pattern of these names.

    All others are counted by their type. Tools keep copies of texts in hidden folders, which are skipped and counted.

    Raises: DataError for a link to nothing, or to a folder, which is not searched.
    """
    root = root_of(str(place))
    starts = [place] if place == root else map(Path, glob(str(place), recursive=True))
    files, skipped = [], Counter[str]()
    for path in sorted({path for start in starts for path in (start, *start.rglob("*"))}):
        if is_hidden(path.relative_to(root)):
            skipped[HIDDEN] += path.is_file()
        elif path.is_file():
            if has_suffix(path, suffixes):
                files.append(path)
            else:
                skipped[type_of(path)] += 1
        elif path.is_symlink():
            raise DataError(f"{path}: is a link to no file, so its texts would be left out; copy them, or delete it")
    return files, +skipped


def is_hidden(path: Path) -> bool:
    """Return whether a relative path is a hidden file, or is in a folder such as .git or __pycache__.

    Example:
        >>> [is_hidden(Path(path)) for path in ("a.txt", "__init__.py", "a/.b.txt", ".a/b.txt", "__a__/b.txt")]
        [False, False, True, True, True]
    """
    in_hidden = any(part.startswith((".", "__")) for part in path.parts[:-1])
    return in_hidden or path.name.startswith(".")


def type_of(path: Path) -> str:
    """Return a file's suffix, before it that of what is compressed.

    Example:
        >>> [type_of(Path(path)) for path in ("a.CSV", "a.b.json.gz", "README")]
        ['.csv', '.json.gz', 'without a suffix']
    """
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        suffix = Path(path.stem).suffix.lower() + suffix
    return suffix or "without a suffix"


def describe(skipped: Counter[str]) -> str:
    """Write how many files of each type are skipped.

    Example:
        >>> describe(Counter({".csv": 1200, "hidden": 1}))
        '1,200 .csv, 1 hidden'
    """
    return ", ".join(f"{n:,} {name}" for name, n in sorted(skipped.items()) if n)


def sizes_of(files: list[Path], root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in files}


def is_text(text: str) -> bool:
    """Return whether UTF-8 can encode a text, which holds no lone surrogates of JSON or of a file's name."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read what it contains, decompressed.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    suffix = path.suffix.lower()
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": open_zst}
    try:
        with openers.get(suffix, open)(path, "rb") as file:
            yield file
    except BROKEN as error:
        raise DataError(f"{path}: is truncated or corrupt ({first_line(error)}); download it again") from error


def open_zst(path: Path, mode: str) -> IO[bytes]:
    """Open a .zst file by pyarrow, which finds where one is truncated.

    Raises: MissingPackage.
    """
    stream: Any = import_pyarrow(".zst").input_stream(str(path), compression="zstd")
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


def text_of(path: Path) -> str:
    """Read a file as text; bytes that are not UTF-8 make it unusable."""
    with reading(path) as file:
        return file.read().decode("utf-8", "surrogateescape")


def read_rows(path: Path) -> Iterator[Row | str]:
    """Read the rows of a file of JSON lines or a .parquet file, or why one is none."""
    with reading(path) as file:
        if has_suffix(path, LINES):
            yield from map(parsed, filter(bytes.strip, file))
        else:
            for batch in import_pyarrow(path.suffix).parquet.ParquetFile(file).iter_batches(batch_size=1024):
                yield from batch.to_pylist()


def parsed(line: bytes) -> Row | str:
    """Parse a JSON object."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of which the second is for a row nested too deep
        return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON"
    return row if isinstance(row, dict) else "not a JSON object"


def read_texts(path: Path, field: str) -> list[str]:
    """Read the texts of a file, of a folder's files, or of those that match a pattern.

    A text is a .txt, .md or .py file, the field `text` of a .json object, or that of each line of a .jsonl file, all of
    them also compressed. Other files of a folder are skipped and counted in a line.

    Raises: DataError, which names the setting that the path comes from.
    """
    types = f"give a .txt, .md, .py, .json or .jsonl file with `text`, such as by curl -LO {ESSAYS}"
    files, skipped = [path], Counter[str]()
    if not path.is_file():
        files, skipped = find_files(path, (*PLAIN, *LINES, *OBJECTS))
    if not files:
        rule = f"no such file, but {describe(skipped)}" if skipped else "no such file"
        raise DataError(f"{field}={path}: {rule}; {types}")
    if skipped:
        report_skipped(f"{field}={path}: files read: {len(files):,}; skipped: {describe(skipped)}")
    texts: list[Any] = []
    for file in files:
        number = 0
        has_rows, is_object = (has_suffix(file, suffixes) for suffixes in (LINES, OBJECTS))
        try:
            with reading(file) as opened:
                content = io.TextIOWrapper(opened, encoding="utf-8").read()
            lines = content.split("\n") if has_rows else [content]
            parts: dict[int, Any] = {at: line for at, line in enumerate(lines, start=1) if line.strip()}
            if has_rows or is_object:
                for number, part in parts.items():
                    row = json.loads(part)
                    parts[number] = row.get("text") if isinstance(row, dict) else None
        except (DataError, ValueError, RecursionError) as error:
            place = f"line {number:,} " if number else ""
            raise DataError(f"{field}={file}: {place}cannot be read ({first_line(error)}); {types}") from error
        wrong = [number for number, text in parts.items() if not isinstance(text, str)]
        if wrong:
            raise DataError(f"{field}={file}: line {wrong[0]:,} holds no text in `text`; {types}")
        texts += parts.values()
    if not any(map(str.strip, texts)):
        raise DataError(f"{field}={path}: holds no text; {types}")
    return texts


@cache
def report_skipped(line: str) -> None:
    """Print which files are skipped, once, as a command reads its text more than once."""
    if read_launch(os.environ).is_first:
        show(line, error=True)
