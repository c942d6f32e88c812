"""What prepared shards record of themselves, and the checks when they are opened.

manifest.json of a shard:

    name, task    the corpus and settings it was made from, and its own name in the folder
    dtype         of the token ids
    splits        documents and tokens of each
    skips         documents left out, by reason
    sources       names, which documents refer to by number
    files         size and SHA-256 of every other file

prepared.json, written once every shard of the folder is there:

    name, identity, tasks    the corpus and settings, in short and in full; the number of shards
    files                    size and SHA-256 of tokenizer.json and of the other files beside the shards

Opening compares names and sizes. lab.verify and lab.prepare --verify also hash every file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lab.errors import DataError
from lab.files import FileEntry, check_sizes, file_fault, sha256, write_json

MANIFEST, PREPARED = "manifest.json", "prepared.json"
RESTORE = "restore it, or delete the folder and prepare again"
Record = TypeVar("Record")

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


class Size(TypedDict):
    """Contents of a split."""

    documents: int
    tokens: int


class Manifest(TypedDict):
    """A shard's manifest."""

    name: str
    task: str
    dtype: Literal["<u2", "<u4"]
    splits: dict[Split, Size]
    skips: dict[str, int]
    sources: list[str]
    files: dict[str, FileEntry]


class PreparedFolder(TypedDict):
    """The record of a folder of shards."""

    name: str
    identity: dict[str, Any]
    tasks: int
    files: dict[str, FileEntry]


READ_MANIFEST, READ_PREPARED = TypeAdapter(Manifest), TypeAdapter(PreparedFolder)


def task_name(task: int) -> str:
    """Return the name of a task's shard."""
    return f"task-{task:05d}"


def shards_in(folder: Path) -> list[Path]:
    """List the shards that a folder holds, in order."""
    return sorted(folder.glob("task-*[0-9]"))


def again(shard: Path) -> str:
    """Return the remedy for a shard that is not what was written."""
    return f"restore it, or delete {shard} and run lab.prepare again"


def read(path: Path, reader: TypeAdapter[Record], remedy: str) -> Record:
    """Read a record.

    Raises: DataError, also for one of another shape.
    """
    try:
        return reader.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValidationError) as error:
        fault = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(f"{path}: cannot be read ({fault}); {remedy}") from error


def read_manifest(shard: Path) -> Manifest:
    """Read a shard's manifest.

    Raises: DataError, also where it belongs to another shard.
    """
    manifest = read(shard / MANIFEST, READ_MANIFEST, again(shard))
    if manifest["task"] != shard.name:
        raise DataError(f"{shard / MANIFEST}: is that of {manifest['task']}; {again(shard)}")
    return manifest


def read_prepared(folder: Path) -> PreparedFolder | None:
    """Read prepared.json; None where the folder has none.

    Raises: DataError.
    """
    path = folder / PREPARED
    return read(path, READ_PREPARED, RESTORE) if path.exists() else None


def close_folder(folder: Path, name: str, identity: Mapping[str, object]) -> None:
    """Write prepared.json, once every shard is there."""
    beside = (path for path in sorted(folder.glob("[!.]*.json")) if path.name != PREPARED)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in beside}
    write_json(folder / PREPARED, {"name": name, "identity": identity, "tasks": len(shards_in(folder)), "files": files})


def check_folder(folder: Path) -> list[Path]:
    """Compare a folder with its prepared.json, if it has one, and return its shards in order.

    Raises: DataError naming the first shard or file that differs.
    """
    record, found = read_prepared(folder), shards_in(folder)
    if record is None:
        return found
    expected = [folder / task_name(task) for task in range(record["tasks"])]
    for path in expected:
        if path not in found:
            raise DataError(f"{path}: is missing, {PREPARED} records it; restore it, or run lab.prepare again")
        if (name := read_manifest(path)["name"]) != record["name"]:
            raise DataError(f"{path}: is a shard of {name}, not of {record['name']}; {again(path)}")
    for path in found:
        if path not in expected:
            raise DataError(f"{path}: is not one of the {len(expected)} shards of {PREPARED}; move it elsewhere")
    for name, entry in record["files"].items():
        if fault := file_fault(folder / name, entry, hashes=True):
            raise DataError(f"{folder / name}: {fault}; {RESTORE}")
    return expected


def read_manifests(folder: Path) -> dict[Path, Manifest]:
    """Read the manifests of a folder's shards in order, and compare names and sizes with what is there.

    Raises: DataError naming the first shard or file that differs.
    """
    manifests = {path: read_manifest(path) for path in check_folder(folder)}
    for path, manifest in manifests.items():
        check_sizes(path, manifest["files"], DataError, again(path))
    return manifests


def check_hashes(shard: Path, manifest: Manifest) -> None:
    """Hash every file of a shard.

    Raises: DataError naming the first file that differs.
    """
    for name, entry in manifest["files"].items():
        if fault := file_fault(shard / name, entry, hashes=True):
            raise DataError(f"{shard / name}: {fault}; {again(shard)}")


def digest_of_data(folder: Path) -> str | None:
    """Hash what a run reads, tokenizer and shards in order; None for a folder that is not prepared.

    Raises: DataError.
    """
    record = read_prepared(folder)
    if record is None:
        return None
    shards = [read_manifest(folder / task_name(task))["files"] for task in range(record["tasks"])]
    recorded = [record["files"].get("tokenizer.json"), shards]
    return hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()
