"""Checkpoints: atomically published folders, found newest first.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, callbacks
    counts.npz                   the position frequency at this point
    manifest.json                consumed tokens, size and SHA-256 of each file; written last

In checkpoints of earlier versions state.ckpt is Lightning's own file and holds weights and optimizer as well.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.errors import CheckpointError
from lab.files import FileEntry, publish_folder, sha256, write_json

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS, MANIFEST = "state.ckpt", "counts.npz", "manifest.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"  # beginnings of the names of the files that hold tensors
TEMPORARY = ".writing"


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    folder: Path
    consumed_tokens: int

    @property
    def state(self) -> Path:
        """The file of step, schedule, counts, data streams and callbacks."""
        return self.folder / STATE

    @property
    def is_sharded(self) -> bool:
        """Whether the tensors have files of their own; earlier versions hold them in state.ckpt."""
        return any(self.folder.glob(f"{WEIGHTS}-*.safetensors"))

    @property
    def digest(self) -> str:
        """Identify the weights by the SHA-256 over those of the files that hold them, from the manifest."""
        files = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        own = {name: entry["sha256"] for name, entry in files.items() if name.startswith(f"{WEIGHTS}-")}
        if not own:
            return str(files[STATE]["sha256"])
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def folder_name(consumed_tokens: int) -> str:
    """Name a checkpoint; names sort by tokens."""
    return f"tokens-{consumed_tokens:015d}"


def temporary_folder(root: Path) -> Path:
    """Create an empty folder to write a checkpoint in, on its final file system."""
    folder = root / TEMPORARY
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def publish(
    root: Path, consumed_tokens: int, keep: int, written: Mapping[str, FileEntry] = MappingProxyType({})
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete all but the newest `keep`.

    Files that are in `written`, hashed as they were written, are not read again.
    """
    temporary = root / TEMPORARY
    files = {p.name: written.get(p.name) or entry_of(p) for p in sorted(temporary.iterdir())}
    write_json(temporary / MANIFEST, {"consumed_tokens": consumed_tokens, "files": files})
    final = root / folder_name(consumed_tokens)
    publish_folder(temporary, final)
    others = [path for path in candidates(root) if path != final]
    newer = [path for path in others if path.name > final.name]  # corrupt ones that the run did not resume from
    older = [path for path in others if path.name < final.name]
    for path in [*newer, *older[keep - 1 :]]:
        shutil.rmtree(path)
    return Checkpoint(final, consumed_tokens)


def entry_of(path: Path) -> FileEntry:
    """Return the size and hash of a file for the manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def candidates(root: Path) -> list[Path]:
    """List the folders that are named as checkpoints, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def fault_of(folder: Path) -> str | None:
    """Return why a checkpoint is unusable, or None if it is complete."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, expected in manifest["files"].items():
            path = folder / name
            if not path.exists():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest complete checkpoint; also return a line for each newer one that was skipped."""
    passed: list[str] = []
    for folder in candidates(root):
        fault = fault_of(folder)
        if fault is None:
            return Checkpoint(folder, int(folder.name.removeprefix("tokens-"))), passed
        passed.append(f"{folder}: {fault}; skipped")
    return None, passed


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the one checkpoint that a folder is, or the newest of a run folder.

    Raises: CheckpointError.
    """
    if NAME.fullmatch(folder.name):
        fault = fault_of(folder)
        if fault:
            raise CheckpointError(f"{folder}: {fault}; use another checkpoint")
        return Checkpoint(folder, int(folder.name.removeprefix("tokens-")))
    found, passed = newest(folder / "checkpoints")
    if found is None:
        detail = f" ({passed[0]})" if passed else ""
        raise CheckpointError(f"{folder}: holds no whole checkpoint{detail}; use a run folder or a checkpoint in it")
    return found
