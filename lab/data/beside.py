"""Arrays that are computed from a shard and stored in hidden files beside it, each with its size and SHA-256.

The record of .asked-train-01234567.npy is .asked-train-01234567.json, a manifest of this one file, written last.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import DataError
from lab.files import FileEntry, entries_of, file_fault, read_object, write_atomic, write_json


def save(path: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_json(record_of(path), {"files": {path.name: write_atomic(path, buffer.getvalue())}})


def load(path: Path, *, hashes: bool = True) -> np.ndarray | None:
    """Map an array into memory; None where none, or not all of it, has been stored.

    Raises: DataError for one that is not what was written.
    """
    if not record_of(path).exists():
        return None
    if fault := fault_of(path, hashes=hashes):
        raise DataError(fault)
    array: Any = np.load(path, mmap_mode="r", allow_pickle=False)  # of a view of a memory map, slices are faster
    return array.view(np.ndarray)


def fault_of(path: Path, *, hashes: bool = True) -> str | None:
    """Return a line on how an array differs from its record, or None."""
    fault = file_fault(path, entry_of(path), hashes=hashes)
    remedy = f"restore it, or delete it and {record_of(path).name} to have it computed again"
    return None if fault is None else f"{path}: {fault}; {remedy}"


def entry_of(path: Path) -> FileEntry:
    """Read the size and SHA-256 of an array from its record.

    Raises: DataError.
    """
    record = record_of(path)
    files = entries_of(read_object(record, DataError, "delete it")) or {}
    if path.name not in files:
        raise DataError(f"{record}: does not record {path.name}; delete it")
    return files[path.name]


def record_of(path: Path) -> Path:
    return path.with_suffix(".json")
