"""Manifests of shards: reading them, and comparing them with prepared.json and with the shards' files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lab.data.blocks import lists_blocks
from lab.data.closing import PREPARED, check_closed, check_file, differs
from lab.errors import DataError
from lab.files import entries_of
from lab.formats import KEY, refuse_unknown

SPLITS, DTYPES = ("train", "held_out"), ("<u2", "<u4")
KINDS = {"ends": ("documents", "<i8"), "sources": ("documents", "<u4"), "scored": ("tokens", "u1")}
VERIFY_BYTES = 2**28  # shards of a smaller total size are hashed when opened, larger ones block by block when read


def read_manifest(shard: Path, expected: str | None = None) -> dict[str, Any]:
    """Read a shard's manifest; `expected` is the SHA-256 that prepared.json records of it.

    Raises: DataError, also for a manifest of another shape, of an unknown format or of another shard.
    """
    path = shard / "manifest.json"
    try:
        data = path.read_bytes()
        manifest = json.loads(data.decode("utf-8"))
        if isinstance(manifest, dict):
            refuse_unknown(path, manifest.get(KEY), DataError)
        fault = fault_of(manifest)
    except (OSError, ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise DataError(f"{shard}: its manifest cannot be read ({fault}); {again(shard)}")
    found, task = hashlib.sha256(data).hexdigest(), manifest.get("task", shard.name)
    if task != shard.name:
        raise DataError(f"{path}: is that of {task}, expected {shard.name}; {again(shard)}")
    if expected not in (None, found):
        raise DataError(differs(path, found, PREPARED, str(expected), again(shard)))
    read: dict[str, Any] = manifest
    return read


def again(shard: Path) -> str:
    """Return the remedy for a shard that is not what was written."""
    return f"restore it, or delete {shard} and run lab.prepare again"


def fault_of(manifest: Any) -> str | None:
    """Return why a manifest has another shape, or None."""
    files = entries_of(manifest) if isinstance(manifest, dict) else None
    if files is None or not lists_blocks(manifest):
        return "it does not list files of its folder"
    splits, kinds = manifest.get("splits"), {"sources": list, "skips": dict}
    if manifest.get("dtype") not in DTYPES or not isinstance(splits, dict) or splits.keys() != set(SPLITS):
        return "it has no dtype, or other splits"
    sizes = [size.get(unit) for size in splits.values() if isinstance(size, dict) for unit in ("documents", "tokens")]
    if len(sizes) < 2 * len(SPLITS) or not all(isinstance(size, int) for size in sizes):
        return "its splits have no sizes"
    wrong = [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]
    if wrong:
        return f"it has no {wrong[0]}"
    return next(filter(None, (fault_of_size(manifest, split) for split in SPLITS)), None)


def fault_of_size(manifest: dict[str, Any], split: str) -> str | None:
    """Return which file of a split has another size than its documents or tokens, of their type, need, or None."""
    for kind, (unit, dtype) in {"tokens": ("tokens", manifest["dtype"]), **KINDS}.items():
        name, n = f"{split}.{kind}.bin", manifest["splits"][split][unit]
        size = manifest["files"].get(name, {}).get("bytes")
        if size != n * np.dtype(dtype).itemsize and not (kind == "scored" and size is None):
            return f"{name} has {size} bytes, which is not {n} {unit} of {np.dtype(dtype)}"
    return None


def read_manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    """Read the manifests of a folder's shards in order, and compare them with prepared.json and with the files' sizes.

    Raises: DataError naming the first file that differs.
    """
    manifests = {path: read_manifest(path, expected) for path, expected in check_closed(folder).items()}
    for path, manifest in manifests.items():
        check_shard(path, manifest, hashes=False)
    return manifests


def is_small(manifests: Iterable[dict[str, Any]]) -> bool:
    """Return whether shards are hashed when they are opened."""
    return bool(sum(file["bytes"] for one in manifests for file in one["files"].values()) <= VERIFY_BYTES)


def check_shard(shard: Path, manifest: dict[str, Any], hashes: bool) -> None:
    """Compare a shard's files with its manifest: sizes, and hashes if asked.

    Raises: DataError naming the file.
    """
    for name, expected in manifest["files"].items():
        check_file(shard / name, expected, "its manifest", again(shard), hashes=hashes)
