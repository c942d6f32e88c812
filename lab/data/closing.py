"""prepared.json, which closes a folder of shards: which shards there are, in which order, with which tokenizer.

    format, identity   the settings that determine the shards
    tasks              number of shards
    files              size and SHA-256 of tokenizer.json and of the other files beside the shards
    shards             SHA-256 of each shard's manifest, which holds those of its files, in order
    sha256             of all of this

Folders that were closed by earlier versions record identity and tasks only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.data.tasks import task_name
from lab.errors import DataError
from lab.files import FileEntry, entries_of, is_sealed, read_object, sealed, sha256, write_json
from lab.formats import FORMAT, KEY, refuse_unknown

PREPARED = "prepared.json"
RESTORE = "restore it, or delete the folder and prepare again"
SHOWN = 12  # hexadecimal digits of a hash in messages
Record = dict[str, Any]


def shards_in(folder: Path) -> list[Path]:
    """List the shards of a prepared folder in order."""
    return sorted(folder.glob("task-*[0-9]"))


def close_folder(folder: Path, identity: Mapping[str, object]) -> None:
    """Record the shards of a folder once all are there.

    Raises: DataError where it was closed before, with others.
    """
    others = [path for path in folder.glob("*.json") if path.name != PREPARED and not path.name.startswith(".")]
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(others)}
    shards = {path.name: sha256(path / "manifest.json") for path in shards_in(folder)}
    before = read_closed(folder) or {}
    for kind, found in (("shards", shards), ("files", files)):
        changed = [name for name, entry in before.get(kind, {}).items() if found.get(name) != entry]
        if changed:
            raise DataError(f"{folder / changed[0]}: is not what {PREPARED} records; {RESTORE}")
    record = {KEY: FORMAT, "identity": identity, "tasks": len(shards), "files": files, "shards": shards}
    write_json(folder / PREPARED, sealed(record))


def read_closed(folder: Path) -> Record | None:
    """Read prepared.json, None where the folder has none.

    Raises: DataError for a damaged one, or one of an unknown format.
    """
    path = folder / PREPARED
    if not path.exists():
        return None
    record = read_object(path, DataError, RESTORE)
    refuse_unknown(path, record.get(KEY), DataError)
    if not isinstance(record.get("tasks"), int):
        raise DataError(f"{path}: tasks={record.get('tasks')}: must be a number of tasks; {RESTORE}")
    if not {"files", "shards", "sha256"}.isdisjoint(record) and not (is_sealed(record) and has_shape(record)):
        raise DataError(f"{path}: does not match its own SHA-256; {RESTORE}")
    return record


def has_shape(record: Record) -> bool:
    """Return whether a record lists files and shards of its own folder, as many shards as tasks."""
    shards = record.get("shards")
    if not isinstance(shards, dict) or not all(Path(name).name == name for name in shards):
        return False
    return len(shards) == record["tasks"] and entries_of(record) is not None


def names_of(record: Record) -> dict[str, str | None]:
    """Return the recorded shards in order, each with the hash of its manifest where that is recorded."""
    return record["shards"] if "shards" in record else dict.fromkeys(map(task_name, range(record["tasks"])))


def check_closed(folder: Path) -> dict[Path, str | None]:
    """Compare a folder with its prepared.json, if it has one: the names of the shards, and the files beside them.

    Returns the shards in order, each with the hash of its manifest where that is recorded.

    Raises: DataError naming the first that differs.
    """
    found = {path.name for path in folder.glob("task-*") if path.is_dir()}
    record = read_closed(folder)
    if record is None:
        return dict.fromkeys(folder / name for name in sorted(found))
    expected = names_of(record)
    missing, more = sorted(expected.keys() - found), sorted(found - expected.keys())
    if missing:
        instead = f" ({more[0]} is there, which is not recorded)" if more else ""
        raise DataError(
            f"{folder / missing[0]}: is missing, {PREPARED} records it{instead}; restore it, or run lab.prepare again"
        )
    if more:
        raise DataError(
            f"{folder / more[0]}: is not one of the {len(expected)} shards that {PREPARED} records; move it elsewhere"
        )
    for name, entry in record.get("files", {}).items():
        check_file(folder / name, entry, PREPARED, RESTORE)
    return {folder / name: digest for name, digest in expected.items()}


def check_file(path: Path, expected: FileEntry, record: str, remedy: str, *, hashes: bool = True) -> None:
    """Compare a file with what a record holds of it.

    Raises: DataError.
    """
    size = path.stat().st_size if path.exists() else None
    if size != expected["bytes"]:
        has = "is missing" if size is None else f"has {size} bytes"
        raise DataError(f"{path}: {has}, {record} records {expected['bytes']}; {remedy}")
    if hashes and (found := sha256(path)) != expected["sha256"]:
        raise DataError(differs(path, found, record, expected["sha256"], remedy))


def differs(path: Path, found: str, record: str, expected: str, remedy: str) -> str:
    """Describe a hash that differs from the recorded one, both by the digits that tell them apart."""
    return f"{path}: has SHA-256 {found[:SHOWN]}, {record} records {expected[:SHOWN]}; {remedy}"


def digest_of_data(folder: Path) -> str | None:
    """Hash what a run reads, tokenizer and shards in order, None where that is not recorded.

    Raises: DataError.
    """
    record = read_closed(folder)
    if record is None or "shards" not in record:
        return None
    tokenizer = record["files"].get("tokenizer.json", {}).get("sha256")
    return hashlib.sha256(json.dumps([tokenizer, list(record["shards"].items())]).encode()).hexdigest()
