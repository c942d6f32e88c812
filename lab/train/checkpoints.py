"""Checkpoints: atomically published folders, found newest first.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, callbacks
    counts.npz                   the position frequency at this point
    manifest.json                format, consumed tokens, size and SHA-256 of each file, and its own; written last
checkpoints/untrained.json       in their stead until the first one is published: a run that begins at step 0

lab/formats.py lists the formats of earlier versions.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lab.errors import CheckpointError
from lab.files import FileEntry, entries_of, publish_folder, read_object, remove, sealed, sha256, write_json
from lab.formats import FORMAT, KEY, refuse_unknown

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS, MANIFEST = "state.ckpt", "counts.npz", "manifest.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"  # beginnings of the names of the files that hold tensors
TEMPORARY, UNTRAINED = ".writing", "untrained.json"
RESTORE = "restore it"


class UnknownFormat(CheckpointError):
    """A checkpoint of a format that this version does not read; it is not passed over for an older one."""


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
        files = read_files(self.folder)
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
    root: Path,
    consumed_tokens: int,
    keep: int,
    written: Mapping[str, FileEntry] = MappingProxyType({}),
    final: Collection[int] = (),
    held: Collection[int] = (),
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete what `prune` does not keep.

    Files that are in `written`, hashed as they were written, are not read again.
    """
    temporary = root / TEMPORARY
    files = {p.name: written.get(p.name) or entry_of(p) for p in sorted(temporary.iterdir())}
    write_json(temporary / MANIFEST, sealed({KEY: FORMAT, "consumed_tokens": consumed_tokens, "files": files}))
    folder = root / folder_name(consumed_tokens)
    publish_folder(temporary, folder)
    (root / UNTRAINED).unlink(missing_ok=True)
    prune(root, consumed_tokens, keep, final, held)
    return Checkpoint(folder, consumed_tokens)


def prune(root: Path, newest: int, keep: int, final: Collection[int] = (), held: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep`, of which the newest is given, all in consumed tokens.

    Those of `final` are kept as well, and others between them are deleted, so that the final ones are the newest; those
    `held` stay whatever else is kept.
    """
    folder, in_use = root / folder_name(newest), {folder_name(tokens) for tokens in held}
    others = [path for path in candidates(root) if path != folder]
    newer = [path for path in others if path.name > folder.name]  # corrupt ones that the run did not resume from
    older = [path for path in others if path.name < folder.name]
    kept = {folder_name(tokens) for tokens in final}
    between = [path for path in older if path.name > min(kept, default=folder.name) and path.name not in kept]
    left = [path for path in older if path not in between]
    for path in [*newer, *between, *(path for path in left[keep - 1 :] if path.name not in kept)]:
        if path.name not in in_use:
            remove(path)


def mark_untrained(root: Path) -> None:
    """Record that no checkpoint has been published yet, so that the run begins at step 0 whatever it has recorded."""
    write_json(root / UNTRAINED, {KEY: FORMAT, "consumed_tokens": 0})


def is_untrained(root: Path) -> bool:
    """Return whether a run has not published a checkpoint yet.

    Raises: CheckpointError for a mark of an unknown format.
    """
    path = root / UNTRAINED
    if candidates(root) or not path.exists():
        return False
    refuse_unknown(path, read_object(path, CheckpointError, RESTORE).get(KEY), CheckpointError)
    return True


def entry_of(path: Path) -> FileEntry:
    """Return the size and hash of a file for the manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def candidates(root: Path) -> list[Path]:
    """List what is named as a checkpoint, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def read_files(folder: Path) -> dict[str, FileEntry]:
    """Read from a checkpoint's manifest the size and hash of each of its files.

    Raises: CheckpointError for a manifest of another shape, or of an unknown format.
    """
    path = folder / MANIFEST
    manifest = read_object(path, CheckpointError, RESTORE)
    refuse_unknown(path, manifest.get(KEY), UnknownFormat)
    files = entries_of(manifest)
    if files is None:
        raise CheckpointError(f"{path}: cannot be read (it does not list files of its folder); {RESTORE}")
    return files


def fault_of(folder: Path) -> str | None:
    """Return why a checkpoint is unusable, or None if it is complete.

    Raises: CheckpointError for an unknown format, which is not broken.
    """
    try:
        for name, expected in read_files(folder).items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
                return f"{name} is not what was written"
    except UnknownFormat:
        raise
    except CheckpointError as error:
        return f"{MANIFEST} cannot be read ({error.__cause__ or 'it does not list files of its folder'})"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    return None


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest complete checkpoint; also return a line for each newer one that was skipped.

    Raises: CheckpointError for a newer one of an unknown format.
    """
    passed: list[str] = []
    for folder in candidates(root):
        fault = fault_of(folder)
        if fault is None:
            return Checkpoint(folder, int(folder.name.removeprefix("tokens-"))), passed
        passed.append(f"{folder}: {fault}; skipped")
    return None, passed


def newest_checkpoints(run: Path, count: int) -> list[Path]:
    """List the newest whole checkpoints of a run folder, newest first.

    Raises: CheckpointError for another folder, or for too few.
    """
    if not (run / "checkpoints").is_dir():
        raise CheckpointError(f"--last={count}: {run} is not a run folder with checkpoints; leave --last out")
    whole = [folder for folder in candidates(run / "checkpoints") if fault_of(folder) is None]
    if len(whole) < count:
        raise CheckpointError(
            f"--last={count}: {run} keeps {len(whole)} whole checkpoints; lower it, or train with a higher "
            "train.keep_checkpoints"
        )
    return whole[:count]


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
