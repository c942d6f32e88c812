"""Files and folders that are complete or absent: written under a temporary name, synced, renamed; and full disks."""

import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own is not read by pydantic before Python 3.12

from lab.core.errors import ConfigError, DataError, DiskError, LabError

LONGEST_JSON = 2**25  # characters of a file; the largest index of a model's weights has some 15 million
HASH_DIGITS = 12  # hexadecimal, of a hash in messages
LEFTOVER = ".*.tmp-*"  # names of temporary_of
AGAIN = "run the same command again, probe-lab fit with --resume"


class FileEntry(TypedDict):
    """What a manifest records of a file."""

    bytes: int
    sha256: str


FILES = TypeAdapter(dict[str, FileEntry])


@contextmanager
def writing(named: str, other: str) -> Iterator[None]:
    """Report in one line why a file or folder, `named` as the user wrote it, cannot be written.

    Raises: ConfigError, whose fix is to name another `other`: a file, a folder.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{named}: cannot be written ({reason}); name another {other}") from error


@contextmanager
def on_disk(path: Path | None = None) -> Iterator[None]:
    """Report in one line that a disk is full or fails; without `path`, also that a file cannot be opened or changed.

    Raises: DiskError.
    """
    try:
        yield
    except OSError as error:
        named = path or Path(error.filename or ".")
        # A caller that names a path reports missing permissions itself, with another folder as the fix.
        if path is None and error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
            fix = f"see its permissions, and `ulimit -n`, and {AGAIN}"
            raise DiskError(f"{named}: cannot be used ({error.strerror}); {fix}") from error
        # Full, over a quota or a limit of file sizes, broken, read-only.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS):
            raise
        raise DiskError(disk_error(named, None, error.strerror or "")) from error


def disk_error(path: Path, needed: int | None, reason: str) -> str:
    """Describe how much space a write needs, how much is free, and what to do."""
    wants = "more" if needed is None else f"{needed:,} bytes"
    fix = "make room on this disk, or check it"
    if os.strerror(errno.EFBIG) in reason:
        fix = "raise `ulimit -f`, the limit of file sizes"
    return f"{path}: needs {wants}, {free_bytes(path):,} bytes are free ({reason}); {fix}, and {AGAIN}"


def free_bytes(path: Path) -> int:
    """Count the free bytes of the file system that holds a path, which may not exist yet."""
    return shutil.disk_usage(next(folder for folder in [path, *path.absolute().parents] if os.path.exists(folder))).free


def walk(folder: Path) -> Iterator[Path]:
    """Yield all files and folders below a folder; rglob would skip a folder that cannot be listed.

    Raises: OSError.
    """
    for entry in [*os.scandir(folder)]:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))


def name_temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")


def delete(path: Path) -> None:
    """Delete a file, a link or a folder, if it exists."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    # A kill during the deletion leaves a part of the folder, which must not have the folder's name.
    if not path.match(LEFTOVER):
        path = path.rename(name_temporary(path))
    shutil.rmtree(path)


def delete_leftovers(folder: Path) -> None:
    """Delete what a kill left half written in a folder that this process owns, and in its subfolders."""
    for path in [*folder.glob(LEFTOVER), *folder.glob(f"*/{LEFTOVER}")]:
        delete(path)


def write_atomic(path: Path, data: bytes) -> FileEntry:
    """Write a file atomically, and return its entry in a manifest.

    Raises: DiskError.
    """
    return write_parts(path, [data])


def write_parts(path: Path, parts: Iterable[bytes]) -> FileEntry:
    """Write a file atomically from parts, which may be read from the old file, and return its entry in a manifest.

    Raises: DiskError.
    """
    temporary = name_temporary(path)
    with on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            entry = write_hashed(temporary, parts, path)
            temporary.replace(path)
            # A loss of power can undo the rename until the folder, which has the file's name, is synced.
            sync(path.parent)
            return entry
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_object(path: Path, error: type[LabError], fix: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises: `error` for anything else, whose line ends with the fix.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_JSON + 1)
        if len(text) > LONGEST_JSON:
            raise ValueError(f"longer than {LONGEST_JSON:,} characters")
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value
    except (OSError, ValueError, RecursionError) as cause:
        raise error(f"{path}: cannot be read ({cause}); {fix}") from cause


def read_entries(manifest: Mapping[str, object]) -> dict[str, FileEntry] | None:
    """Return the files that a manifest lists by name, or None unless all are in its own folder or one in it.

    Example:
        >>> entry = {"bytes": 1, "sha256": "00"}
        >>> read_entries({"files": {"a.bin": entry}}), read_entries({"files": {"../a.bin": entry}})
        ({'a.bin': {'bytes': 1, 'sha256': '00'}}, None)
    """
    try:
        files = FILES.validate_python(manifest.get("files"), strict=True)
    except ValidationError:
        return None
    for name in files:
        if name != Path(name).as_posix() or Path(name).is_absolute() or ".." in name:
            return None
    return files


def build_manifest(folder: Path, pattern: str = "*") -> dict[str, FileEntry]:
    return {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.glob(pattern))}


def check_sizes(folder: Path, files: Mapping[str, FileEntry], fix: str, *, hashes: bool = False) -> None:
    """Reject a folder in which a file of its manifest is missing, or has another size or, with `hashes`, SHA-256."""
    for error in errors_in(folder, files, unread=() if hashes else ("",)):
        raise DataError(f"{error}; {fix}")


def errors_in(
    folder: Path, files: Mapping[str, FileEntry], *, unread: tuple[str, ...] = (), grow: Collection[str] = ()
) -> Iterator[str]:
    """List how files of a folder differ from their entries; those whose names begin as `unread` are not hashed."""
    for name, entry in files.items():
        if error := file_error(folder / name, entry, hashes=not name.startswith(unread), grows=name in grow):
            yield f"{folder / name}: {error}"


def file_error(path: Path, expected: FileEntry, *, hashes: bool = False, grows: bool = False) -> str | None:
    """Return how a file differs from its entry in a manifest, or None; its SHA-256 is compared only with `hashes`.

    Of a file that `grows` only the first bytes are compared, up to the size that the manifest records.
    """
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != expected["bytes"] and not (grows and size > expected["bytes"]):
        return f"has {size:,} bytes, its manifest records {expected['bytes']:,}"
    if not hashes:
        return None
    try:
        digest = sha256(path, expected["bytes"])
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if digest != expected["sha256"]:
        return f"has SHA-256 {digest[:HASH_DIGITS]}, its manifest records {expected['sha256'][:HASH_DIGITS]}"
    return None


def sha256(path: Path, first: int = sys.maxsize) -> str:
    """Return the SHA-256 of a file, or of its `first` bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        # In parts, because records of a long run can be larger than the memory.
        while part := file.read(min(first, 2**18)):
            digest.update(part)
            first -= len(part)
    return digest.hexdigest()


def write_hashed(path: Path, parts: Iterable[bytes | memoryview], named: Path | None = None) -> FileEntry:
    """Write a new file in parts, hashing it while writing, and sync it; errors name another path where one is given.

    Raises: DiskError.
    """
    digest = hashlib.sha256()
    size = 0
    with on_disk(named or path), path.open("xb") as file:
        for part in parts:
            size += memoryview(part).nbytes
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a finished folder to its final name, replacing what has that name.

    Raises: DiskError.
    """
    with on_disk(final):
        for path in [*temporary.rglob("*"), temporary]:
            sync(path)
        delete(final)
        temporary.rename(final)
        sync(final.parent)
