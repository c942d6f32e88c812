"""Checkpoints: folders that one rename publishes, found newest first, and what one process reads from them; manifests.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, sums of metrics
    counts.npz                   the position frequency at this point
    manifest.json                its run, consumed tokens, size and SHA-256 of each file, and of the first bytes of the
                                 run's records as they were then; written last
checkpoints/untrained.json       is in their place until the first one is published

What is read of a checkpoint is hashed before, all of it if a run is resumed. A checkpoint of another run, and one that
is not what was written, are rejected. Nothing falls back to an older one by itself.
"""

import hashlib
import json
import math
import pickle
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError

from lab.core.errors import CheckpointError, first_line
from lab.core.files import (
    HASH_DIGITS,
    FileEntry,
    errors_in,
    file_error,
    read_entries,
    read_object,
    sha256,
    sync,
    write_json,
)

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS = "state.ckpt", "counts.npz"
WEIGHTS, OPTIMIZER = "weights-", "optimizer-"  # beginnings of the names of the files that hold tensors
TENSORS = (WEIGHTS, OPTIMIZER)
MANIFEST, RUN, CONSUMED, SEEN = "manifest.json", "run", "consumed_tokens", "records"
RESTORE = "restore it"
ANEW = f"{RESTORE}, or start again with --restart"
TEMPORARY, UNTRAINED = ".writing", "untrained.json"
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the offsets of each shard in its tensor
BEGINS = "begins"
PROBES = "probes.jsonl"
RECORDS = ("metrics.jsonl", PROBES)
READ = ("config.yaml", "environment.json", "tokenizer.json", "haystack.txt", "impact.json", "plugins/")
"""What evaluations of the model, and a resume, read; of names that end in a slash all files."""
LOCK = threading.Lock()  # a checkpoint may be published by a thread while a probe is recorded
SETTLE_S = 0.5  # a run in training replaces a file shortly before its entry


def read_run_manifest(run: Path) -> tuple[str, dict[str, FileEntry]]:
    """Read the digest of a run from its folder, and the entries of its files.

    Raises: CheckpointError.
    """
    manifest = read_object(run / MANIFEST, CheckpointError, ANEW)
    entries, digest = read_entries(manifest), manifest.get(RUN)
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

    def tensor_files(self, *prefixes: str) -> list[Path]:
        """List the files of tensors that its manifest lists, all or those with some prefixes."""
        return [self.folder / name for name in self.files if name.startswith(prefixes or TENSORS)]

    @cached_property
    def manifest(self) -> dict[str, object]:
        """Its manifest, as it is.

        Raises: CheckpointError.
        """
        return read_object(self.folder / MANIFEST, CheckpointError, RESTORE)

    @property
    def records(self) -> dict[str, FileEntry] | None:
        """The first bytes of the run's records as it was saved; None for a checkpoint of an older version."""
        return read_entries({"files": self.manifest.get(SEEN)})

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """The files that its manifest lists.

        Raises: CheckpointError for a manifest of anything else, a checkpoint of another run among it.
        """
        path, manifest = self.folder / MANIFEST, self.manifest
        entries, run = read_entries(manifest), manifest.get(RUN)
        is_named = manifest.get(CONSUMED) == self.consumed_tokens
        # A damaged name would read as that of a checkpoint of an older version, which knows no records.
        is_named &= manifest.keys() <= {RUN, CONSUMED, SEEN, "files"} and (self.records or {}).keys() <= set(RECORDS)
        if entries is None or not isinstance(run, str) or not (is_named and {STATE, COUNTS} <= entries.keys()):
            raise CheckpointError(f"{path}: is not that of this checkpoint; {RESTORE}")
        # A checkpoint may be copied anywhere and opened there. In a run folder it must be of that run.
        home = self.folder.parent.parent
        in_run = self.folder.parent.name == "checkpoints" and (home / "config.yaml").exists()
        if in_run and run != (expected := read_run_manifest(home)[0]):
            raise CheckpointError(
                f"{path}: is a checkpoint of run {run[:HASH_DIGITS]}, this one is {expected[:HASH_DIGITS]} (other "
                "settings, seed or data); move it elsewhere"
            )
        return entries


def folder_name(consumed_tokens: int) -> str:
    """Name a checkpoint; names sort by tokens."""
    return f"tokens-{consumed_tokens:015d}"


def is_untrained(root: Path) -> bool:
    return not candidates(root) and (root / UNTRAINED).exists()


def candidates(root: Path) -> list[Path]:
    """List what is named as a checkpoint, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def find_error(folder: Path, unread: tuple[str, ...] = ()) -> str | None:
    """Return a line on why a checkpoint is unusable, or None; files whose names begin as `unread` are not hashed."""
    try:
        for message in errors_in(folder, Checkpoint(folder).files, unread=unread):
            return f"{message}; {RESTORE}"
    except CheckpointError as error:
        return first_line(error)
    return None


def reject(folder: Path, error: str, fits: Callable[[Checkpoint], bool] = lambda _: True) -> NoReturn:
    """Reject a checkpoint for its error, and name the newest older one that is whole and fits, and those after it.

    Raises: CheckpointError.
    """
    newer: list[str] = []
    for older in candidates(folder.parent):
        if older.name < folder.name and find_error(older) is None and fits(Checkpoint(older)):
            raise CheckpointError(
                f"{error}, or delete {', '.join(newer)} to go on from {older.name}, the newest whole one"
            )
        newer.append(str(older))
    raise CheckpointError(f"{error}, or start again with --restart")


def newest(root: Path, unread: tuple[str, ...] = ()) -> Checkpoint | None:
    """Return the newest checkpoint, None where there is none; files whose names begin as `unread` are not hashed.

    Raises: CheckpointError for one that is not whole.
    """
    for folder in candidates(root):
        if error := find_error(folder, unread):
            reject(folder, error)
        return Checkpoint(folder)
    return None


def open_checkpoint(folder: Path, unread: tuple[str, ...] = (OPTIMIZER,)) -> Checkpoint:
    """Open the one checkpoint that a folder is, or the newest of a run folder, by default to read its weights.

    Files with names that begin as `unread` are not hashed. The optimizer's moments, two thirds of the bytes, are not
    read to open a model.

    Raises: CheckpointError.
    """
    if NAME.fullmatch(folder.name):
        if error := find_error(folder, unread):
            raise CheckpointError(error)
        return Checkpoint(folder)
    checkpoint = newest(folder / "checkpoints", unread)
    if checkpoint is None:
        raise CheckpointError(f"{folder}: holds no checkpoint; use a run folder or a checkpoint in it")
    return checkpoint


@contextmanager
def rejecting(path: Path) -> Iterator[None]:
    """Turn what broken files raise into an error for the user."""
    try:
        yield
    # what torch.load and safetensors raise for files that are cut, or of another type
    except (
        SafetensorError,
        pickle.UnpicklingError,
        EOFError,
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({first_line(error)}); restore it, or use another checkpoint"
        ) from error


def add_to_manifest(run: Path, names: Collection[str]) -> dict[str, FileEntry]:
    """Enter files as they have been written, those that are there, and return their entries."""
    with LOCK:
        digest, entries = read_run_manifest(run)
        for path in filter(Path.is_file, map(run.joinpath, names)):
            # After a loss of power the manifest must not list more than the disk has.
            sync(path)
            sync(path.parent)
            # A record that no longer begins with the bytes of its entry was changed by somebody else: a new entry would
            # hide that.
            name = path.relative_to(run).as_posix()
            before = entries.get(name) if name in RECORDS else None
            if before is None or not file_error(path, before, hashes=True, grows=True):
                # The size is read first, and only so many bytes are hashed: records may grow meanwhile.
                size = path.stat().st_size
                entries[name] = {"bytes": size, "sha256": sha256(path, size)}
        write_json(run / MANIFEST, {RUN: digest, "files": dict(sorted(entries.items()))})
        return {name: entries[name] for name in names if name in entries}


def drop_from_manifest(run: Path, digest: str, names: Collection[str], after: float = math.inf) -> None:
    """Drop the entries of files that a run of this digest, which may be a new one, is about to write or delete.

    With them go the entries of probes after a number of consumed tokens. The manifest says that a part begins, until
    its files are entered: a run that is killed in between misses none.
    """
    entries = read_run_manifest(run)[1] if (run / MANIFEST).exists() else {}
    left = {name: entry for name, entry in entries.items() if name not in names and probe_of(name) <= after}
    write_json(run / MANIFEST, {RUN: digest, BEGINS: True, "files": left})


def probe_of(name: str) -> int:
    """Return the consumed tokens of the probe that wrote a file, -1 for other files.

    Example:
        >>> probe_of("cases/tokens-000000000250000.jsonl"), probe_of("config.yaml")
        (250000, -1)
    """
    match = NAME.fullmatch(Path(name).stem)
    return int(match[1]) if match else -1


def list_errors(run: Path, wanted: tuple[str, ...] = ("",)) -> list[str]:
    """List how files whose names begin as those `wanted` differ from their entries, a line each.

    Raises: CheckpointError where there is no manifest.
    """
    errors: list[str] = []
    for wait_s in (0.0, SETTLE_S):
        # A run in training replaces a file shortly before its entry: what differs then is the same a moment later.
        time.sleep(wait_s)
        entries = {name: entry for name, entry in read_run_manifest(run)[1].items() if name.startswith(wanted)}
        errors = [f"{error}; restore it" for error in errors_in(run, entries, grow=RECORDS)]
        if not errors:
            break
    return errors


def check_files(run: Path, names: tuple[str, ...] = READ) -> None:
    """Reject a run folder of which a named file is not what was written.

    A run that has not started has no manifest, nor has one that was unpacked from a table of records.

    Raises: CheckpointError.
    """
    if (run / MANIFEST).exists() and (errors := list_errors(run, names)):
        raise CheckpointError("\n".join(errors))
