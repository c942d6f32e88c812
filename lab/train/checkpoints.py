"""Checkpoints: folders that one rename publishes, found newest first, and what one process reads from them.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, sums of metrics
    counts.npz                   the position frequency at this point
    manifest.json                consumed tokens, size and SHA-256 of each file; written last
checkpoints/untrained.json       stands in their place until the first one is published

Opening a checkpoint reads its manifest and compares sizes. The small files must have their SHA-256, the files of
tensors the right number of consumed tokens in their headers. lab.verify hashes every byte.

Weights are read without torch.distributed.checkpoint, whose import takes as long as a small evaluation; torch itself
is imported where tensors are read.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from lab.errors import CheckpointError, first_line
from lab.files import FileEntry, entries_of, file_fault, manifest_of, publish_folder, read_object, remove, write_json
from lab.train.state import check

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS, MANIFEST = "state.ckpt", "counts.npz", "manifest.json"
WEIGHTS, OPTIMIZER = "weights", "optimizer"  # beginnings of the names of the files that hold tensors
CONSUMED = "consumed_tokens"
TEMPORARY, UNTRAINED = ".writing", "untrained.json"
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the place of each shard in its tensor


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    folder: Path

    @property
    def consumed_tokens(self) -> int:
        """The tokens that its name states."""
        return int(self.folder.name.removeprefix("tokens-"))

    @property
    def state(self) -> Path:
        """The file of all but tensors."""
        return self.folder / STATE

    @property
    def digest(self) -> str:
        """Identify the weights by the SHA-256 over those of the files that hold them, from the manifest."""
        files = read_object(self.folder / MANIFEST, CheckpointError, "restore it")["files"]
        own = {name: entry["sha256"] for name, entry in files.items() if name.startswith(f"{WEIGHTS}-")}
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
    written: Mapping[str, FileEntry] | None = None,
    final: Collection[int] = (),
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete what `prune` does not keep.

    `written` is the manifest of the folder's files, hashed as they were written; left out, they are read.
    """
    temporary = root / TEMPORARY
    folder = root / folder_name(consumed_tokens)
    files = manifest_of(temporary) if written is None else dict(sorted(written.items()))
    write_json(temporary / MANIFEST, {CONSUMED: consumed_tokens, "files": files})
    publish_folder(temporary, folder)
    (root / UNTRAINED).unlink(missing_ok=True)
    prune(root, consumed_tokens, keep, final)
    return Checkpoint(folder)


def prune(root: Path, newest: int, keep: int, final: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep`, of which the newest is given, all in consumed tokens.

    Those of `final` are kept as well, and others between them are deleted, so that the final ones are the newest.
    Checkpoints after the newest are broken ones that the run did not resume from.
    """
    found = {Checkpoint(folder).consumed_tokens: folder for folder in candidates(root)}
    older = [tokens for tokens in found if tokens < newest]
    left = [tokens for tokens in older if tokens <= min(final, default=newest) or tokens in final]
    stay = {newest, *left[: keep - 1], *(tokens for tokens in final if tokens < newest)}
    for tokens in found.keys() - stay:
        remove(found[tokens])


def is_untrained(root: Path) -> bool:
    """Return whether a run has not published a checkpoint yet."""
    return not candidates(root) and (root / UNTRAINED).exists()


def candidates(root: Path) -> list[Path]:
    """List what is named as a checkpoint, newest first."""
    return sorted((p for p in root.glob("tokens-*") if NAME.fullmatch(p.name)), reverse=True)


def fault_of(folder: Path) -> str | None:
    """Return why a checkpoint is unusable, or None if all of its files are there and belong to it."""
    try:
        manifest = read_object(folder / MANIFEST, CheckpointError, "restore it")
        files = entries_of(manifest)
        consumed = Checkpoint(folder).consumed_tokens
        if files is None or manifest.get(CONSUMED) != consumed:
            return f"{MANIFEST} is not that of this checkpoint"
        for name, entry in files.items():
            small = not name.endswith(".safetensors")
            fault = file_fault(folder / name, entry, hashes=small)
            if fault is None and not small:
                with safe_open(folder / name, framework="np") as file:
                    stated = (file.metadata() or {}).get(CONSUMED, str(consumed))
                fault = None if stated == str(consumed) else f"is that of {stated} tokens"
            if fault is not None:
                return f"{name} {fault}"
    except (CheckpointError, SafetensorError, OSError) as error:
        return first_line(error).removeprefix(f"{folder}/").removesuffix("; restore it")
    return None


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest complete checkpoint; also return a line for each newer one that was skipped."""
    passed: list[str] = []
    for folder in candidates(root):
        fault = fault_of(folder)
        if fault is None:
            return Checkpoint(folder), passed
        passed.append(f"{folder}: {fault}; skipped")
    return None, passed


def newest_checkpoints(run: Path, count: int) -> list[Path]:
    """List the newest whole checkpoints of a run folder, newest first.

    Raises: CheckpointError where there are too few, such as in another folder.
    """
    whole = [folder for folder in candidates(run / "checkpoints") if fault_of(folder) is None]
    if len(whole) < count:
        raise CheckpointError(
            f"--last={count}: {run} keeps {len(whole)} whole checkpoints; name a run folder, lower it, or train with a "
            "higher train.keep_checkpoints"
        )
    return whole[:count]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the one checkpoint that a folder is, or the newest of a run folder.

    Raises: CheckpointError.
    """
    if NAME.fullmatch(folder.name):
        if fault := fault_of(folder):
            raise CheckpointError(f"{folder}: {fault}; use another checkpoint")
        return Checkpoint(folder)
    found, passed = newest(folder / "checkpoints")
    if found is None:
        detail = f" ({passed[0]})" if passed else ""
        raise CheckpointError(f"{folder}: holds no whole checkpoint{detail}; use a run folder or a checkpoint in it")
    return found


def read_state(checkpoint: Checkpoint, *, whole: bool = False) -> dict[str, Any]:
    """Read a checkpoint's state.ckpt without running code from it.

    Raises: CheckpointError; of a `whole` state also where a part is missing or has another form.
    """
    import torch

    with refusing(checkpoint.state):
        state = torch.load(checkpoint.state, map_location="cpu", weights_only=True, mmap=True)
        if whole:
            check(state)
        return dict(state)


def read_parameters(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Read all weights, a shared one once, on the CPU; any number of processes may have written some rows each.

    Raises: CheckpointError.
    """
    import torch

    rows: dict[str, list[tuple[int, Tensor]]] = {}
    with refusing(checkpoint.folder):
        for path in checkpoint.folder.glob(f"{WEIGHTS}-*.safetensors"):
            with safe_open(path, framework="pt") as file:
                places = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
                for name in file.keys():  # noqa: SIM118, which is no dictionary
                    start = places.get(name, {}).get("saved_offsets", [0])[0]
                    rows.setdefault(name, []).append((start, file.get_tensor(name)))
    parts = {name: [part for _, part in sorted(found, key=itemgetter(0))] for name, found in rows.items()}
    return {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in parts.items()}


def read_weights_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Read all weights under all their names, without the optimizer, on the CPU.

    Raises: CheckpointError.
    """
    with refusing(checkpoint.state):
        shared = read_state(checkpoint)["shared"]
    read = read_parameters(checkpoint)
    return read | {name: read[first] for name, first in shared.items()}


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a model the weights of a checkpoint of its own shapes, without the optimizer.

    Raises: CheckpointError.
    """
    read = read_parameters(checkpoint)
    with refusing(checkpoint.folder):
        for name, weight in model.named_parameters():
            if name not in read or read[name].shape != weight.shape:
                raise ValueError(f"it does not hold {name} as {tuple(weight.shape)}")
            weight.data = read[name]


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what broken files raise into an error for the user."""
    faults = (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError)
    try:
        yield
    except faults as error:
        remedy = "use another checkpoint, or delete this one to resume from the one before it"
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)}); {remedy}") from error
