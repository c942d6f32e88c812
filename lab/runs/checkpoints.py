"""Checkpoints: folders that one rename publishes, found newest first, and what one process reads from them.

checkpoints/tokens-000010485760/
    weights-00000.safetensors    the weights, or the part of them that process 0 held; one file a process
    optimizer-00000.safetensors  the optimizer's moments in the same way
    state.ckpt                   the rest: step, schedule, counts, data streams, sums of metrics
    counts.npz                   the position frequency at this point
    manifest.json                its run, consumed tokens, size and SHA-256 of each file, and of the first bytes of the
                                 run's records as they were then; written last
checkpoints/untrained.json       stands in their place until the first one is published

What is read of a checkpoint is hashed before, all of it where a run is resumed. A checkpoint of another run, and one
that is not what was written, are refused. Nothing falls back to an older one by itself.

A save, a resume and lab.verify check that the parts of a state agree. Every stream has given one pack to each step, and
has drawn samples of its own only, of which each pack took one or more. What was counted are the consumed tokens.

torch is imported where a state is read.
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
from typing import Annotated, Any, NoReturn

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from typing_extensions import TypedDict

from lab.core import files
from lab.core.command import show
from lab.core.errors import CheckpointError, brief, first_line
from lab.core.files import SHOWN, FileEntry

NAME = re.compile(r"tokens-(\d{15})")
STATE, COUNTS = "state.ckpt", "counts.npz"
WEIGHTS, OPTIMIZER = "weights-", "optimizer-"  # beginnings of the names of the files that hold tensors
TENSORS = (WEIGHTS, OPTIMIZER)
MANIFEST, RUN, CONSUMED, SEEN = "manifest.json", "run", "consumed_tokens", "records"
RESTORE = "restore it"
ANEW = f"{RESTORE}, or begin anew with --restart"
TEMPORARY, UNTRAINED = ".writing", "untrained.json"
BROKEN = (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError)
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the place of each shard in its tensor
Whole = Annotated[int, Field(ge=0)]


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
        hashes = {name: entry["sha256"] for name, entry in self.files.items() if name.startswith(WEIGHTS)}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def tensor_files(self, *kinds: str) -> list[Path]:
        """List the files of tensors that its manifest lists, all or of some kinds."""
        return [self.folder / name for name in self.files if name.startswith(kinds or TENSORS)]

    def name_strays(self) -> None:
        """Print a line that names files of tensors in its folder that are not its own."""
        strays = sorted({*self.folder.glob("*.safetensors")} - {*self.tensor_files()})
        if strays:
            names = brief(", ".join(path.name for path in strays))
            show(f"{self.folder}: {names}: not of this checkpoint, not read", error=True)

    @cached_property
    def records(self) -> dict[str, FileEntry] | None:
        """The first bytes of the run's records as it was saved; None for a checkpoint of an older version.

        Raises: CheckpointError.
        """
        manifest = files.read_object(self.folder / MANIFEST, CheckpointError, RESTORE)
        return files.entries_of({"files": manifest.get(SEEN)})

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """The files that its manifest lists.

        Raises: CheckpointError for a manifest of anything else, a checkpoint of another run among it.
        """
        path = self.folder / MANIFEST
        manifest = files.read_object(path, CheckpointError, RESTORE)
        entries, run = files.entries_of(manifest), manifest.get(RUN)
        is_named = manifest.get(CONSUMED) == self.consumed_tokens
        if entries is None or not isinstance(run, str) or not (is_named and {STATE, COUNTS} <= entries.keys()):
            raise CheckpointError(f"{path}: is not that of this checkpoint; {RESTORE}")
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
        fault = next(files.faults_in(folder, Checkpoint(folder).files, unread=unread), None)
    except CheckpointError as error:
        return first_line(error)
    return None if fault is None else f"{fault}; {RESTORE}"


def refuse(folder: Path, fault: str, fits: Callable[[Checkpoint], bool] = lambda _: True) -> NoReturn:
    """Refuse a checkpoint for its fault, and name the newest older one that is whole and fits.

    Raises: CheckpointError.
    """
    older = [path for path in candidates(folder.parent) if path.name < folder.name]
    whole = next((path.name for path in older if find_fault(path) is None and fits(Checkpoint(path))), None)
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
    if fault := find_fault(folder, unread):
        refuse(folder, fault)
    return Checkpoint(folder)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the one checkpoint that a folder is, or the newest of a run folder, to read its weights.

    Raises: CheckpointError.
    """
    if NAME.fullmatch(folder.name):
        if fault := find_fault(folder, (OPTIMIZER,)):
            raise CheckpointError(fault)
        return Checkpoint(folder)
    checkpoint = newest(folder / "checkpoints", (OPTIMIZER,))
    if checkpoint is None:
        raise CheckpointError(f"{folder}: holds no checkpoint; use a run folder or a checkpoint in it")
    return checkpoint


class Counted(TypedDict):
    """What has been counted: see lab.counts.PositionCounts."""

    max_len: Whole
    lengths: list[Whole]
    gapped: list[Whole]
    supervised: list[Whole]
    evidence: list[Whole]
    demand: list[Whole]
    demand_by_ids: list[Whole]


class Recorded(TypedDict):
    """The state of lab.train.record.Recording."""

    counts: Counted
    sums: dict[str, float]


class Schedule(TypedDict):
    """The state of torch's LambdaLR."""

    last_epoch: Whole
    base_lrs: list[float]
    lr_lambdas: list[Any]
    _last_lr: list[float]


class Streams(TypedDict):
    """The states of the packs' streams, int64 (n_streams, 2 + look_ahead): see lab.data.packing."""

    streams: Any


class State(TypedDict):
    """The contents of state.ckpt, from which a run continues; `optimizer` has the numbers of each parameter."""

    step: Whole
    consumed_tokens: Whole
    skipped_steps: Whole
    schedule: Schedule
    data: Streams
    recording: Recorded
    final: dict[Whole, Whole]
    optimizer: dict[str, dict[str, Any]]
    shared: dict[str, str]


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
    try:
        yield
    except BROKEN as error:
        raise CheckpointError(
            f"{path}: cannot be read ({first_line(error)}); restore it, or use another checkpoint"
        ) from error


def check(state: Any) -> None:
    """Check that a state has all parts, each of its form, and that they agree.

    Raises: ValueError.
    """
    try:
        TypeAdapter(State).validate_python(state, strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    counts = state["recording"]["counts"]
    sizes = {name: counts["max_len"] + (name == "lengths") for name in Counted.__annotations__ if name != "max_len"}
    if any(len(counts[name]) != size for name, size in sizes.items()):
        raise ValueError("recording.counts: have another size than max_len states")
    counted = sum(length * n for length, n in enumerate(counts["lengths"])) + sum(counts["gapped"][:1])
    if counted != state["consumed_tokens"]:
        raise ValueError(f"recording.counts: are of {counted} tokens, consumed_tokens are {state['consumed_tokens']}")
    check_streams(getattr(state["data"]["streams"], "numpy", lambda: None)(), state["step"], state["consumed_tokens"])


def check_streams(streams: np.ndarray | None, step: int, consumed_tokens: int) -> None:
    """Check that the streams' states are those after so many steps.

    Raises: ValueError.
    """
    if streams is None or streams.dtype != np.int64 or streams.ndim != 2 or min(len(streams), streams.shape[1] - 2) < 1:
        raise ValueError("data.streams: must be int64 (n_streams, 2 + look_ahead)")
    packs, following, waiting = streams[:, 0], streams[:, 1], streams[:, 2:]
    if (differ := np.flatnonzero(packs != step)).size:
        rule = f"has given {packs[differ[0]]} packs by step {step}, each step takes one of every stream"
        raise ValueError(f"data.streams: stream {differ[0]} {rule}")
    numbers = np.arange(len(streams))[:, None]
    foreign = (waiting % len(streams) != numbers) | (waiting >= following[:, None])
    if (following % len(streams) != numbers[:, 0]).any() or (foreign & (waiting != -1)).any() or (waiting < -1).any():
        raise ValueError("data.streams: a stream has samples of another")
    drawn = (following - numbers[:, 0]) // len(streams) - (waiting >= 0).sum(1)  # by each stream, for its packs
    if (drawn < packs).any() or drawn.sum() > max(consumed_tokens, 0):  # a sample has one token or more
        raise ValueError("data.streams: have drawn more samples than were trained on, or fewer than their packs hold")
