"""Checkpoints: folders that one rename publishes, found newest first; no torch.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, callbacks
    counts.npz                   the position frequency at this point
    manifest.json                consumed tokens, size and SHA-256 of each file; written last
checkpoints/untrained.json       stands in their place until the first one is published

Opening a checkpoint reads its manifest, compares sizes, and checks that each file belongs to it: the small files by
their SHA-256, the files of tensors by the consumed tokens in their headers. lab.verify hashes every byte.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import CheckpointError
from lab.files import FileEntry, entries_of, file_fault, manifest_of, publish_folder, read_object, remove, write_json

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS, MANIFEST = "state.ckpt", "counts.npz", "manifest.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"  # beginnings of the names of the files that hold tensors
CONSUMED = "consumed_tokens"
TEMPORARY, UNTRAINED = ".writing", "untrained.json"


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    folder: Path
    consumed_tokens: int

    @classmethod
    def of(cls, folder: Path) -> Checkpoint:
        """Return the checkpoint of a folder's name."""
        return cls(folder, tokens_of(folder))

    @property
    def state(self) -> Path:
        """The file of step, schedule, counts, data streams and callbacks."""
        return self.folder / STATE

    @property
    def digest(self) -> str:
        """Identify the weights by the SHA-256 over those of the files that hold them, from the manifest."""
        files = read_manifest(self.folder)["files"]
        own = {name: entry["sha256"] for name, entry in files.items() if name.startswith(f"{WEIGHTS}-")}
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def folder_name(consumed_tokens: int) -> str:
    """Name a checkpoint; names sort by tokens."""
    return f"tokens-{consumed_tokens:015d}"


def tokens_of(folder: Path) -> int:
    """Return the consumed tokens that a checkpoint's name states."""
    return int(folder.name.removeprefix("tokens-"))


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
    written: Mapping[str, FileEntry] | None = None,
    final: Collection[int] = (),
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete what `prune` does not keep.

    `written` is the manifest of the folder's files, hashed as they were written; left out, they are read.
    """
    temporary = root / TEMPORARY
    files = manifest_of(temporary) if written is None else dict(sorted(written.items()))
    write_json(temporary / MANIFEST, {CONSUMED: consumed_tokens, "files": files})
    folder = root / folder_name(consumed_tokens)
    publish_folder(temporary, folder)
    (root / UNTRAINED).unlink(missing_ok=True)
    prune(root, consumed_tokens, keep, final)
    return Checkpoint(folder, consumed_tokens)


def prune(root: Path, newest: int, keep: int, final: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep`, of which the newest is given, all in consumed tokens.

    Those of `final` are kept as well, and others between them are deleted, so that the final ones are the newest.
    Checkpoints after the newest are broken ones that the run did not resume from.
    """
    older = [tokens for tokens in map(tokens_of, candidates(root)) if tokens < newest]
    left = [tokens for tokens in older if tokens <= min(final, default=newest) or tokens in final]
    stay = {newest, *left[: keep - 1], *(tokens for tokens in final if tokens < newest)}
    for path in candidates(root):
        if tokens_of(path) not in stay:
            remove(path)


def mark_untrained(root: Path) -> None:
    """Record that no checkpoint has been published yet, so that the run begins at step 0 whatever it has recorded."""
    write_json(root / UNTRAINED, {CONSUMED: 0})


def is_untrained(root: Path) -> bool:
    """Return whether a run has not published a checkpoint yet."""
    return not candidates(root) and (root / UNTRAINED).exists()


def candidates(root: Path) -> list[Path]:
    """List what is named as a checkpoint, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest.

    Raises: CheckpointError for one of another shape, or of another checkpoint.
    """
    path = folder / MANIFEST
    manifest = read_object(path, CheckpointError, "restore it")
    if entries_of(manifest) is None:
        raise CheckpointError(f"{path}: cannot be read (it does not list files of its folder); restore it")
    if manifest.get(CONSUMED) != tokens_of(folder):
        raise CheckpointError(f"{path}: is that of {manifest.get(CONSUMED)} tokens; restore it")
    return manifest


def fault_of(folder: Path) -> str | None:
    """Return why a checkpoint is unusable, or None if all of its files are there and belong to it."""
    try:
        for name, entry in read_manifest(folder)["files"].items():
            path, small = folder / name, not name.endswith(".safetensors")
            fault = file_fault(path, entry, hashes=small) or (None if small else fault_of_header(path))
            if fault is not None:
                return f"{name} {fault}"
    except CheckpointError as error:
        return str(error).removeprefix(f"{folder}/").rpartition(";")[0]
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    return None


def fault_of_header(path: Path) -> str | None:
    """Return whether a safetensors file states another checkpoint than that of its folder, or none can be read.

    Source: the safetensors format, version 0.5: u64 length of the header, then JSON.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            stated = json.loads(file.read(min(size, path.stat().st_size)))["__metadata__"].get(CONSUMED)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "is not a file of tensors"
    return None if stated in (None, str(tokens_of(path.parent))) else f"is that of {stated} tokens"


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest complete checkpoint; also return a line for each newer one that was skipped."""
    passed: list[str] = []
    for folder in candidates(root):
        fault = fault_of(folder)
        if fault is None:
            return Checkpoint.of(folder), passed
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
        if fault := fault_of(folder):
            raise CheckpointError(f"{folder}: {fault}; use another checkpoint")
        return Checkpoint.of(folder)
    found, passed = newest(folder / "checkpoints")
    if found is None:
        detail = f" ({passed[0]})" if passed else ""
        raise CheckpointError(f"{folder}: holds no whole checkpoint{detail}; use a run folder or a checkpoint in it")
    return found
