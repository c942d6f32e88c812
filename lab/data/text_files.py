"""Files of text on disk: which of a path's files are read, and their rows; what is skipped is counted by its type.

A line that cannot be used is skipped with its reason, where a library would end with the whole file.
"""

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator
from glob import glob, has_magic
from itertools import product, takewhile
from pathlib import Path
from typing import IO, Any

from lab.data.chat import Row
from lab.errors import DataError, MissingPackage, first_line

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
PLAIN = tuple(map("".join, product((".txt", ".md", ".py"), ("", *COMPRESSIONS))))  # one document each
LINES = tuple(map("".join, product((".jsonl", ".ndjson"), ("", *COMPRESSIONS))))  # a document per row, as in a table
ROWS = (*LINES, ".parquet")
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
        rule = f"no such file or folder, or none with {', '.join(suffixes)}"
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
    return Path(*takewhile(lambda part: not has_magic(part), Path(place).parts))


def find_files(place: Path, suffixes: tuple[str, ...]) -> tuple[list[Path], Counter[str]]:
    """Find the files with one of some suffixes that a file, a folder at all depths, or a pattern of these names.

    All others are counted by their type. Tools keep copies of texts in hidden folders, which are skipped and counted.

    Raises: DataError for a link to nothing, or to a folder, which is not searched.
    """
    root = root_of(str(place))
    files, skipped = [], Counter[str]()
    for path in sorted(paths_below(place)):
        if is_hidden(path.relative_to(root)):
            skipped[HIDDEN] += path.is_file()
        elif path.is_symlink() and not path.is_file():
            raise DataError(f"{path}: is a link to no file, so its texts would be left out; copy them, or delete it")
        elif path.is_file() and has_suffix(path.name, suffixes):
            files.append(path)
        elif path.is_file():
            skipped[type_of(path)] += 1
    return files, skipped


def paths_below(place: Path) -> set[Path]:
    """Return all paths in a folder, or in what a pattern matches."""
    if has_magic(str(place)) and not place.exists():
        found = set()
        for match in glob(str(place), recursive=True):
            found |= paths_below(Path(match))
        return found
    return set(place.rglob("*")) if place.is_dir() else {place}


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


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read what it contains, decompressed.

    Raises: MissingPackage.
    """
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return io.BufferedReader(import_pyarrow(suffix).input_stream(str(path), compression="zstd"))
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(suffix, open)
    return opener(path, "rb")


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
    """Read a file as text; bytes that are not UTF-8 make it unusable.

    Raises: DataError for a broken file.
    """
    try:
        with open_bytes(path) as file:
            return file.read().decode("utf-8", "surrogateescape")
    except BROKEN as error:
        raise broken(path, error) from error


def broken(path: Path, error: BaseException) -> DataError:
    return DataError(f"{path}: is truncated or corrupt ({first_line(error)}); download it again")


def read_rows(path: Path) -> Iterator[Row | str]:
    """Read the rows of a file of JSON lines or a .parquet file, or why one is none.

    Raises: DataError for a truncated or broken file, MissingPackage.
    """
    try:
        if has_suffix(path.name, LINES):
            with open_bytes(path) as file:
                yield from map(parsed, filter(bytes.strip, file))
        else:
            for batch in import_pyarrow(path.suffix).parquet.ParquetFile(path).iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except BROKEN as error:
        raise broken(path, error) from error


def parsed(line: bytes) -> Row | str:
    """Parse a JSON object."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of which the second is for a row nested too deep
        return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON"
    return row if isinstance(row, dict) else "not a JSON object"


def check_whole(path: Path) -> None:
    """Reject a truncated .zst file, which the library reads up to where it ends.

    Raises: OSError.
    """
    if path.suffix.lower() == ".zst":
        with open_bytes(path) as file:
            while file.read(2**24):
                pass
