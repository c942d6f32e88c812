"""Files and folders that are whole or absent: written under a temporary name, synced, renamed; and full disks.

A manifest lists the files of a folder: `files`, with the size and SHA-256 of each by its name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict  # typing's own is not read by pydantic before Python 3.12

from lab.errors import ConfigError, DiskError, LabError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # full, over a quota, broken
SHOWN = 12  # hexadecimal digits of a hash in messages
AGAIN = "run the same command again, lab.fit with --resume"


class FileEntry(TypedDict):
    """What a manifest records of a file."""

    bytes: int
    sha256: str


@contextmanager
def writing(named: str, other: str) -> Iterator[None]:
    """Report in one line why a file or folder, `named` as the user wrote it, cannot be written.

    Raises: ConfigError, whose remedy is to name another `other`: a file, a folder.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{named}: cannot be written ({reason}); name another {other}") from error


@contextmanager
def on_disk(path: Path | None = None, needed: int | None = None) -> Iterator[None]:
    """Report in one line that a disk is full or fails; without `path` the error must name it.

    Units: `needed` in bytes.
    Raises: DiskError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        named, reason = path or Path(error.filename or "."), error.strerror or ""
        if error.errno == errno.EIO:
            raise DiskError(f"{named}: the disk fails ({reason}); check it and {AGAIN}") from error
        raise DiskError(disk_fault(named, needed, reason)) from error


def disk_fault(path: Path, needed: int | None, reason: str) -> str:
    """Describe what cannot be written, the bytes that it needs, and those that are free."""
    free = f"{free_bytes(path):,} bytes are free"
    wants = f"needs {needed:,} bytes, {free}" if needed is not None else f"needs more, {free}"
    return f"{path}: {wants} ({reason}); make room on this disk and {AGAIN}"


def free_bytes(path: Path) -> int:
    """Count the free bytes of the file system that holds a path, which may not exist yet."""
    return shutil.disk_usage(next(folder for folder in [path, *path.absolute().parents] if folder.exists())).free


def temporary_of(path: Path) -> Path:
    """Return a name for a file or folder while it is being written."""
    return path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a kill left half written in a folder that this process owns, and in its subfolders."""
    for path in [*folder.glob(".*.tmp-*"), *folder.glob("*/.*.tmp-*")]:
        remove(path)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file atomically.

    Raises: DiskError.
    """
    temporary = temporary_of(path)
    with on_disk(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_hashed(temporary, [data], path)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_object(path: Path, error: type[LabError], remedy: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises: `error` for anything else, whose line ends with the remedy.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise error(f"{path}: cannot be read ({fault}); {remedy}") from fault
    if not isinstance(value, dict):
        raise error(f"{path}: cannot be read (not a JSON object); {remedy}")
    return value


def entries_of(manifest: dict[str, Any]) -> dict[str, FileEntry] | None:
    """Return the files that a manifest lists by name, or None unless all are in its own folder.

    Example:
        >>> entry = {"bytes": 1, "sha256": "00"}
        >>> entries_of({"files": {"a.bin": entry}}), entries_of({"files": {"../a.bin": entry}})
        ({'a.bin': {'bytes': 1, 'sha256': '00'}}, None)
    """
    files = manifest.get("files")
    if not isinstance(files, dict):
        return None
    kinds = {"bytes": int, "sha256": str}
    whole = all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), kind) for key, kind in kinds.items())
        for entry in files.values()
    )
    return files if whole and all(Path(name).name == name for name in files) else None


def manifest_of(folder: Path) -> dict[str, FileEntry]:
    """Return the size and SHA-256 of each file of a folder, by name."""
    return {path.name: manifest_entry(path) for path in sorted(folder.iterdir())}


def manifest_entry(path: Path) -> FileEntry:
    """Return a file's size and SHA-256."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def check_sizes(
    folder: Path, files: Mapping[str, FileEntry], error: type[LabError], remedy: str, *, hashes: bool = False
) -> None:
    """Refuse a folder that lacks a file of its manifest, or holds one of another size or, with `hashes`, SHA-256.

    Raises: `error`.
    """
    for name, entry in files.items():
        if fault := file_fault(folder / name, entry, hashes=hashes):
            raise error(f"{folder / name}: {fault}; {remedy}")


def file_fault(path: Path, expected: FileEntry, *, hashes: bool = False) -> str | None:
    """Return how a file differs from its entry in a manifest, or None; its SHA-256 is compared only with `hashes`."""
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        return "is missing"
    if size != expected["bytes"]:
        return f"has {size:,} bytes, its manifest records {expected['bytes']:,}"
    if hashes and (found := sha256(path)) != expected["sha256"]:
        return f"has SHA-256 {found[:SHOWN]}, its manifest records {expected['sha256'][:SHOWN]}"
    return None


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_hashed(path: Path, parts: Iterable[bytes | memoryview], named: Path | None = None) -> FileEntry:
    """Write a new file in parts, hashing it while writing, and sync it; errors name another path where one is given.

    Raises: DiskError.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("xb") as file:
            for part in parts:
                size += memoryview(part).nbytes
                file.write(part)
                digest.update(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with on_disk(named or path, size):
            raise
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
        remove(final)
        temporary.rename(final)
        sync(final.parent)
