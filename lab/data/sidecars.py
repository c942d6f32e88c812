"""Sidecar files: arrays that are computed from shards and stored in hidden files next to them, with size and SHA-256.

The record of .segments-01234567.npy is .segments-01234567.json, a manifest of this one file, written last.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.errors import DataError
from lab.core.files import LEFTOVER, FileEntry, check_sizes, read_entries, read_object, remove, write_atomic, write_json


def save(path: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    entry = write_atomic(path, buffer.getvalue())
    write_json(record_path(path), {"files": {path.name: entry}})  # last, as a kill may leave an array without a record


def load(path: Path, *, hashes: bool = True) -> np.ndarray | None:
    """Map an array into memory; None if it has not been stored, or not to its end.

    Raises: DataError for one that is not what was written.
    """
    if not record_path(path).exists():
        return None
    fix = f"restore it, or delete it and {record_path(path).name} to have it computed again"
    check_sizes(path.parent, {path.name: read_entry(path)}, fix, hashes=hashes)
    array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray)  # slices of an ndarray are made faster than those of a memmap


def read_entry(path: Path) -> FileEntry:
    """Read the size and SHA-256 of an array from its record.

    Raises: DataError.
    """
    record = record_path(path)
    files = read_entries(read_object(record, DataError, "delete it")) or {}
    if path.name not in files:
        raise DataError(f"{record}: does not record {path.name}; delete it")
    return files[path.name]


def record_path(path: Path) -> Path:
    return path.with_suffix(".json")


def remove_leftovers(path: Path) -> None:
    """Delete what a kill left half written of an array and its record."""
    for leftover in path.parent.glob(f".{path.stem}{LEFTOVER}"):
        remove(leftover)
