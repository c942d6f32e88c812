"""Checkpoints: folders that one rename publishes, found newest first, and what one process reads from them.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, sums of metrics
    counts.npz                   the position frequency at this point
    manifest.json                its run, consumed tokens, size and SHA-256 of each file; written last
checkpoints/untrained.json       stands in their place until the first one is published

What is read of a checkpoint is hashed before, all of it where a run is resumed. A checkpoint of another run, and one
that is not what was written, are refused. Nothing falls back to an older one by itself.

torch is imported where a state is read.
"""

import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from safetensors import SafetensorError

from lab import files
from lab.errors import CheckpointError, first_line
from lab.files import SHOWN, FileEntry
from lab.runs.state import State, check

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS = "state.ckpt", "counts.npz"
WEIGHTS, OPTIMIZER = "weights-", "optimizer-"  # beginnings of the names of the files that hold tensors
TENSORS = (WEIGHTS, OPTIMIZER)
MANIFEST, RUN, CONSUMED = "manifest.json", "run", "consumed_tokens"
RESTORE = "restore it"
ANEW = f"{RESTORE}, or begin anew with --restart"
TEMPORARY, UNTRAINED = ".writing", "untrained.json"
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the place of each shard in its tensor


def read_manifest(run: Path) -> tuple[str, dict[str, FileEntry]]:
    """Read the digest of a run from its folder, and the entries of its files.

    Raises: CheckpointError.
    """
    manifest = files.read_object(run / MANIFEST, CheckpointError, ANEW)
    entries, digest = files.entries_of(manifest), manifest.get(RUN)
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
        own = {name: entry["sha256"] for name, entry in self.files.items() if name.startswith(WEIGHTS)}
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()

    @property
    def run(self) -> Path | None:
        """The run folder that it lies in, if it does."""
        home = self.folder.parent.parent
        return home if self.folder.parent.name == "checkpoints" and (home / "config.yaml").exists() else None

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """The files that its manifest lists.

        Raises: CheckpointError for a manifest of anything else, a checkpoint of another run among it.
        """
        path = self.folder / MANIFEST
        manifest = files.read_object(path, CheckpointError, RESTORE)
        entries = files.entries_of(manifest)
        if entries is None or manifest.get(CONSUMED) != self.consumed_tokens:
            raise CheckpointError(f"{path}: is not that of this checkpoint; {RESTORE}")
        if lacks := [name for name in (STATE, COUNTS) if name not in entries]:
            raise CheckpointError(f"{path}: lists no {lacks[0]}; {RESTORE}")
        if not isinstance(run := manifest.get(RUN), str):
            raise CheckpointError(f"{path}: does not name its run; {RESTORE}")
        if self.run is not None and run != (expected := read_manifest(self.run)[0]):
            rule = f"is a checkpoint of run {run[:SHOWN]}, this one is {expected[:SHOWN]}"
            raise CheckpointError(f"{path}: {rule} (other settings, seed or data); move it elsewhere")
        return entries

    def fault_of(self, name: str, *, hashes: bool = True) -> str | None:
        """Return how a file differs from the manifest, its SHA-256 compared with `hashes`, or None."""
        fault = files.file_fault(self.folder / name, self.files[name], hashes=hashes)
        return None if fault is None else f"{self.folder / name}: {fault}; {RESTORE}"


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
    run: str,
    written: Mapping[str, FileEntry] | None = None,
    final: Collection[int] = (),
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete what `prune` does not keep.

    `run` is the digest of the run. `written` are the entries of the folder's files, hashed as they were written; left
    out, they are read.
    """
    temporary = root / TEMPORARY
    folder = root / folder_name(consumed_tokens)
    entries = files.manifest_of(temporary) if written is None else dict(sorted(written.items()))
    files.write_json(temporary / MANIFEST, {RUN: run, CONSUMED: consumed_tokens, "files": entries})
    files.publish_folder(temporary, folder)
    (root / UNTRAINED).unlink(missing_ok=True)
    prune(root, consumed_tokens, keep, final)
    return Checkpoint(folder)


def prune(root: Path, newest: int, keep: int, final: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep`, of which the newest is given, all in consumed tokens.

    Those of `final` are kept as well, and others between them are deleted, so that the final ones are the newest.
    Checkpoints after the newest are broken ones that the run did not resume from.
    """
    found = {Checkpoint(folder).consumed_tokens: folder for folder in candidates(root)}
    # An ordinary checkpoint after the first final one would stand between two of them and goes at once; of those before
    # it, the newest stay until `keep` are there.
    older = [tokens for tokens in found if tokens < newest]
    left = [tokens for tokens in older if tokens <= min(final, default=newest) or tokens in final]
    stay = {newest, *left[: keep - 1], *(tokens for tokens in final if tokens < newest)}
    for tokens in found.keys() - stay:
        files.remove(found[tokens])


def is_untrained(root: Path) -> bool:
    return not candidates(root) and (root / UNTRAINED).exists()


def candidates(root: Path) -> list[Path]:
    """List what is named as a checkpoint, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def fault_of(folder: Path, unread: tuple[str, ...] = ()) -> str | None:
    """Return a line on why a checkpoint is unusable, or None; files whose names begin as `unread` are not hashed."""
    checkpoint = Checkpoint(folder)
    try:
        faults = (checkpoint.fault_of(name, hashes=not name.startswith(unread)) for name in checkpoint.files)
        return next(filter(None, faults), None)
    except CheckpointError as error:
        return first_line(error)


def refuse(folder: Path, fault: str) -> None:
    """Refuse a checkpoint for its fault, and name the newest older one that is whole.

    Raises: CheckpointError.
    """
    older = [path for path in candidates(folder.parent) if path.name < folder.name]
    whole = next((path.name for path in older if fault_of(path) is None), None)
    remedy = (
        "or begin anew with --restart"
        if whole is None
        else f"or delete {folder} to go on from {whole}, the newest whole one"
    )
    raise CheckpointError(f"{fault}, {remedy}")


def newest(root: Path, unread: tuple[str, ...] = ()) -> Checkpoint | None:
    """Return the newest checkpoint, None where there is none; files whose names begin as `unread` are not hashed.

    Raises: CheckpointError for one that is not whole.
    """
    folder = next(iter(candidates(root)), None)
    if folder is None:
        return None
    if fault := fault_of(folder, unread):
        refuse(folder, fault)
    return Checkpoint(folder)


def newest_checkpoints(run: Path, count: int) -> list[Path]:
    """List the newest checkpoints of a run folder, newest first.

    Raises: CheckpointError where there are too few, such as in another folder.
    """
    found = candidates(run / "checkpoints")
    if len(found) < count:
        raise CheckpointError(
            f"--last={count}: {run} keeps {len(found)} checkpoints; name a run folder, lower it, or train with a "
            "higher train.keep_checkpoints"
        )
    return found[:count]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the one checkpoint that a folder is, or the newest of a run folder, to read its weights.

    Raises: CheckpointError.
    """
    if NAME.fullmatch(folder.name):
        if fault := fault_of(folder, (OPTIMIZER,)):
            raise CheckpointError(fault)
        return Checkpoint(folder)
    found = newest(folder / "checkpoints", (OPTIMIZER,))
    if found is None:
        raise CheckpointError(f"{folder}: holds no checkpoint; use a run folder or a checkpoint in it")
    return found


def read_state(checkpoint: Checkpoint) -> State:
    """Read a checkpoint's state.ckpt without running code from it.

    Raises: CheckpointError, also where a part is missing or parts do not agree.
    """
    import torch

    with refusing(checkpoint.state):
        state: State = torch.load(checkpoint.state, map_location="cpu", weights_only=True, mmap=True)
        check(state)
        if state["consumed_tokens"] != checkpoint.consumed_tokens:
            raise ValueError(f"consumed_tokens: {state['consumed_tokens']}, its name has {checkpoint.consumed_tokens}")
        return state


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what broken files raise into an error for the user."""
    faults = (
        SafetensorError,
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
    )
    try:
        yield
    except faults as error:
        raise CheckpointError(
            f"{path}: cannot be read ({first_line(error)}); restore it, or use another checkpoint"
        ) from error
