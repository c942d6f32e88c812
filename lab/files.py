"""Atomic files and folders: written under a temporary name, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from lab.errors import ConfigError


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


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_hashed(path: Path, parts: Iterable[bytes | memoryview]) -> FileEntry:
    """Write a new file in parts, hashing it while writing, and sync it."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += memoryview(part).nbytes
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync_folder(folder: Path) -> None:
    """Sync the files of a folder and its directory entries to disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a finished folder to its final name, replacing an existing one."""
    sync_folder(temporary)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
