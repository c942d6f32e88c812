"""Checkpoints: folders that one rename publishes, found newest first, and what one process reads from them.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, sums of metrics
    counts.npz                   the position frequency at this point
    manifest.json                its run, consumed tokens, size and SHA-256 of each file, and of the first bytes of the
                                 run's records as they were then; written last
checkpoints/untrained.json       stands in their place until the first one is published

What is read of a checkpoint is hashed before, all of it if a run is resumed. A checkpoint of another run, and one that
is not what was written, are rejected. Nothing falls back to an older one by itself.
"""

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError

from lab.core import files
from lab.core.command import show
from lab.core.errors import CheckpointError, abbreviate, first_line
from lab.core.files import SHOWN, FileEntry

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS = "state.ckpt", "counts.npz"
WEIGHTS, OPTIMIZER = "weights-", "optimizer-"  # beginnings of the names of the files that hold tensors
TENSORS = (WEIGHTS, OPTIMIZER)
MANIFEST, RUN, CONSUMED, SEEN = "manifest.json", "run", "consumed_tokens", "records"
RESTORE = "restore it"
ANEW = f"{RESTORE}, or begin anew with --restart"
TEMPORARY, UNTRAINED = ".writing", "untrained.json"
# What torch.load and safetensors were seen to raise for files that are cut, overwritten or of another kind.
BROKEN = (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError)
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the place of each shard in its tensor


def read_manifest(run: Path) -> tuple[str, dict[str, FileEntry]]:
    """Read the digest of a run from its folder, and the entries of its files.

    Raises: CheckpointError.
    """
    manifest = files.read_object(run / MANIFEST, CheckpointError, ANEW)
    entries, digest = files.read_entries(manifest), manifest.get(RUN)
    if entries is None or not isinstance(digest, str):
        raise CheckpointError(f"{run / MANIFEST}: is not that of a run; {ANEW}")
    return digest, entries


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    folder: Path

    @property
    def consumed_tokens(self) -> int:
        return int(self.folder.name.removeprefix("tokens-"))

    @property
    def state(self) -> Path:
        """The file of all but tensors."""
        return self.folder / STATE

    @property
    def digest(self) -> str:
        """Identify the weights by the SHA-256 over those of the files that hold them, from the manifest."""
        hashes = {path.name: self.files[path.name]["sha256"] for path in self.tensor_files(WEIGHTS)}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def tensor_files(self, *kinds: str) -> list[Path]:
        """List the files of tensors that its manifest lists, all or of some kinds."""
        return [self.folder / name for name in self.files if name.startswith(kinds or TENSORS)]

    def name_strays(self) -> None:
        """Print a line that names files of tensors in its folder that are not its own."""
        strays = {path.name for path in self.folder.glob("*.safetensors")} - self.files.keys()
        if strays:
            names = abbreviate(", ".join(sorted(strays)))
            show(f"{self.folder}: {names}: not of this checkpoint, not read", error=True)

    @cached_property
    def records(self) -> dict[str, FileEntry] | None:
        """The first bytes of the run's records as it was saved; None for a checkpoint of an older version.

        Raises: CheckpointError.
        """
        manifest = files.read_object(self.folder / MANIFEST, CheckpointError, RESTORE)
        return files.read_entries({"files": manifest.get(SEEN)})

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """The files that its manifest lists.

        Raises: CheckpointError for a manifest of anything else, a checkpoint of another run among it.
        """
        path = self.folder / MANIFEST
        manifest = files.read_object(path, CheckpointError, RESTORE)
        entries, run = files.read_entries(manifest), manifest.get(RUN)
        is_named = manifest.get(CONSUMED) == self.consumed_tokens
        if entries is None or not isinstance(run, str) or not (is_named and {STATE, COUNTS} <= entries.keys()):
            raise CheckpointError(f"{path}: is not that of this checkpoint; {RESTORE}")
        # A checkpoint may be copied anywhere and opened there. In a run folder it must be of that run.
        home = self.folder.parent.parent
        in_run = self.folder.parent.name == "checkpoints" and (home / "config.yaml").exists()
        if in_run and run != (expected := read_manifest(home)[0]):
            rule = f"is a checkpoint of run {run[:SHOWN]}, this one is {expected[:SHOWN]}"
            raise CheckpointError(f"{path}: {rule} (other settings, seed or data); move it elsewhere")
        return entries


def folder_name(consumed_tokens: int) -> str:
    """Name a checkpoint; names sort by tokens."""
    return f"tokens-{consumed_tokens:015d}"


def is_untrained(root: Path) -> bool:
    return not candidates(root) and (root / UNTRAINED).exists()


def candidates(root: Path) -> list[Path]:
    """List what is named as a checkpoint, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def find_fault(folder: Path, unread: tuple[str, ...] = ()) -> str | None:
    """Return a line on why a checkpoint is unusable, or None; files whose names begin as `unread` are not hashed."""
    try:
        for fault in files.faults_in(folder, Checkpoint(folder).files, unread=unread):
            return f"{fault}; {RESTORE}"
    except CheckpointError as error:
        return first_line(error)
    return None


def refuse(folder: Path, fault: str, fits: Callable[[Checkpoint], bool] = lambda _: True) -> NoReturn:
    """Reject a checkpoint for its fault, and name the newest older one that is whole and fits.

    Raises: CheckpointError.
    """
    for older in candidates(folder.parent):
        if older.name < folder.name and find_fault(older) is None and fits(Checkpoint(older)):
            fix = f"delete {folder} to go on from {older.name}, the newest whole one"
            raise CheckpointError(f"{fault}, or {fix}")
    raise CheckpointError(f"{fault}, or begin anew with --restart")


def newest(root: Path, unread: tuple[str, ...] = ()) -> Checkpoint | None:
    """Return the newest checkpoint, None where there is none; files whose names begin as `unread` are not hashed.

    Raises: CheckpointError for one that is not whole.
    """
    folders = candidates(root)
    if not folders:
        return None
    if fault := find_fault(folders[0], unread):
        refuse(folders[0], fault)
    return Checkpoint(folders[0])


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the one checkpoint that a folder is, or the newest of a run folder, to read its weights.

    Raises: CheckpointError.
    """
    # The optimizer's moments, two thirds of the bytes, are not read to open a model, and so not hashed.
    if NAME.fullmatch(folder.name):
        if fault := find_fault(folder, (OPTIMIZER,)):
            raise CheckpointError(fault)
        return Checkpoint(folder)
    checkpoint = newest(folder / "checkpoints", (OPTIMIZER,))
    if checkpoint is None:
        raise CheckpointError(f"{folder}: holds no checkpoint; use a run folder or a checkpoint in it")
    return checkpoint


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what broken files raise into an error for the user."""
    try:
        yield
    except BROKEN as error:
        raise CheckpointError(
            f"{path}: cannot be read ({first_line(error)}); restore it, or use another checkpoint"
        ) from error
