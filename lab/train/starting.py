"""Where a run starts: anew, at a checkpoint, or not at all; the files that a start writes first; what it prints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from lab.command import show
from lab.config import Experiment, load_experiment
from lab.data.module import PackedData
from lab.data.preparation import digest_of_data, shard_folder, summarise
from lab.data.selecting import read_token_types, result_file
from lab.data.shaped import shape_record, summary_of_shape
from lab.data.tokenizer import load_tokenizer
from lab.errors import CheckpointError, ConfigError, DiskError
from lab.files import (
    LOCK_NAME,
    disk_fault,
    free_bytes,
    holder_file,
    locked,
    read_object,
    remove_leftovers,
    write_atomic,
    write_json,
    writing,
)
from lab.launch import Launch
from lab.model import devices
from lab.positions import frequencies
from lab.positions.methods import describe
from lab.positions.rope import base_warning
from lab.probe.needles import KEPT, text_to_keep
from lab.probe.released_needles import window_warning
from lab.source import tokenizer_of
from lab.train import checkpoints
from lab.train.arms import changes
from lab.train.checkpoints import Checkpoint
from lab.train.environment import (
    choose_backend,
    choose_compile,
    computes_in_bf16,
    describe_environment,
    training_device,
)
from lab.train.folder import RunFolder

WEIGHT_BYTES = 12  # the weight and AdamW's two moments, float32 each
POSITION_BYTES = 32  # of counts.npz: lengths, f, supervised and its f
RESTART = "begin anew with --restart, which moves this folder aside and deletes nothing"


@contextmanager
def own_run(experiment: Experiment, launch: Launch) -> Iterator[None]:
    """Own the run folder during the body, as the first process; the others wait for it when they meet.

    Raises: InUse, ConfigError where the folder cannot be made.
    """
    if not launch.is_first:
        yield
        return
    path = experiment.run.path
    with writing(f"run.folder={experiment.run.folder}", "folder"):
        path.mkdir(parents=True, exist_ok=True)
    try:
        with locked(path / LOCK_NAME):
            remove_leftovers(path)
            shutil.rmtree(path / "checkpoints" / checkpoints.TEMPORARY, ignore_errors=True)
            yield
    finally:
        with suppress(OSError):
            path.rmdir()  # nothing was written


def find_start(experiment: Experiment, folder: RunFolder, resume: bool, launch: Launch) -> Checkpoint | None:
    """Find the checkpoint that the run resumes from; None for a run that has not been trained yet.

    Only the first process verifies checkpoints; the others receive theirs in trainer.fit.

    Raises: CheckpointError if a run of that name exists and --resume is missing, its settings differ, or nothing of it
        can be resumed.
    """
    if not folder.holds_records():
        return None  # a new run, or one that ended before it trained
    if not resume:
        raise CheckpointError(
            f"run.name={experiment.run.name}: {folder.path} already holds a run; continue with --resume, {RESTART}, or "
            "choose another --run.name"
        )
    config = folder.path / "config.yaml"
    if not config.is_file():
        raise CheckpointError(f"{config}: is missing, and nothing tells what was trained; restore it, or {RESTART}")
    before = load_experiment(config)
    faults = [
        f"{key}={new}: the run was started with {old}; set it back, or choose another --run.name"
        for key, old, new in changes(before.to_dict(), experiment.to_dict())
    ]
    if faults:
        raise ConfigError(*faults)
    if not launch.is_first:
        return None
    found, passed = checkpoints.newest(folder.checkpoints)
    if found is None and not checkpoints.is_untrained(folder.checkpoints):
        reason = passed[0].removesuffix("; skipped") if passed else "there is none"
        raise CheckpointError(f"{folder.checkpoints}: holds no whole checkpoint ({reason}); restore one, or {RESTART}")
    for line in passed:
        show(line, error=True)
    if found is not None:
        checkpoints.read_state(found, checkpoints.NEEDED)  # or some part of the run would begin anew
    return found


def start_folder(
    experiment: Experiment,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    data: PackedData,
    threads: int,
    *,
    restart: bool = False,
) -> None:
    """Write the files that describe the run, after the last checks; on a resume, add to them and drop later records.

    A new run is marked as untrained before anything else is written; a `restart` first moves the old one aside.

    Raises: LabError.
    """
    shards, probe = shard_folder(experiment.data), experiment.probe
    tokenizer = load_tokenizer(shards)
    check_vocabulary(experiment)
    warning = window_warning(experiment.tests, tokenizer, experiment.reach)
    token_types = choose_token_types(experiment, folder, checkpoint)
    show("\n".join(filter(None, (f"data: {summarise(shards).summary}", warning))))
    shape = planned_shape(experiment, folder, checkpoint, data)
    if restart and any(not entry.name.startswith(LOCK_NAME) for entry in folder.path.iterdir()):
        show(f"{folder.path}: moved to {move_aside(folder.path)}")
    weights = experiment.model.n_parameters() * WEIGHT_BYTES  # room for two checkpoints, or for a second one
    needed = (2 if checkpoint is None else 1) * (weights + 2 * experiment.reach * POSITION_BYTES)
    if free_bytes(folder.path) < needed:
        raise DiskError(disk_fault(folder.path, needed, "checkpoints until the first is replaced, and counts"))
    if checkpoint is None:
        checkpoints.mark_untrained(folder.checkpoints)
    environment = describe_start(experiment, folder, checkpoint, threads)
    folder.rewind(checkpoint.consumed_tokens if checkpoint else -1)
    write_json(folder.path / "environment.json", environment)
    write_atomic(folder.path / "tokenizer.json", (shards / "tokenizer.json").read_bytes())
    if checkpoint is None:
        (folder.path / KEPT).unlink(missing_ok=True)
        text = text_to_keep(probe.haystack, experiment.data, tokenizer, probe.longest(experiment.data.window))
        if text is not None:
            write_atomic(folder.path / KEPT, text.encode())
    write_atomic(folder.path / "config.yaml", experiment.to_yaml().encode("utf-8"))
    if token_types is not None:
        write_atomic(folder.token_types, token_types)
    if shape is not None:
        write_json(folder.path / "shape.json", shape)
    show(announce(experiment, checkpoint))


def check_vocabulary(experiment: Experiment) -> None:
    """Refuse a model with fewer embeddings than tokens, and weights that were trained with another tokenizer.

    Raises: ConfigError.
    """
    ours, size, start = load_tokenizer(shard_folder(experiment.data)), experiment.model.vocab_size, experiment.start
    vocabulary = ours.get_vocab()
    if len(vocabulary) > size:
        n = len(vocabulary)
        raise ConfigError(f"model.vocab_size={size}: the tokenizer has {n} tokens; use {n} or more")
    own = tokenizer_of(Path(start.path)) if start is not None else None
    differ = len(load_tokenizer(own).get_vocab().items() ^ vocabulary.items()) if own is not None else 0
    if start is not None and differ:
        raise ConfigError(
            f"data.tokenizer: is not the one that start.path={start.path} was trained with ({differ} entries differ); "
            "leave data.tokenizer out"
        )


def choose_token_types(experiment: Experiment, folder: RunFolder, checkpoint: Checkpoint | None) -> bytes | None:
    """Read and check the impactful token types that select sentences; a resumed run keeps those it started with.

    Raises: LabError.
    """
    if experiment.skip is None or not experiment.reads_token_types:
        return None
    path = Path(experiment.skip.selection)
    found = result_file(path if checkpoint is None else folder.token_types)
    read_token_types(found, load_tokenizer(shard_folder(experiment.data)))
    kept = found.read_bytes()
    if checkpoint is not None and result_file(path).is_file() and result_file(path).read_bytes() != kept:
        show(f"skip.selection={path}: has changed; the run continues with {found}, as it started", error=True)
    return kept


def planned_shape(
    experiment: Experiment, folder: RunFolder, checkpoint: Checkpoint | None, data: PackedData
) -> dict[str, Any] | None:
    """Print and record the shape of a run that has one; a resumed run must have its first plan.

    Raises: ConfigError for a target out of reach, CheckpointError for another plan.
    """
    if experiment.shape is None or data.shaped is None:
        return None
    cost = data.shaped.cost(data.store, experiment.train.tokens)
    record, path = shape_record(experiment.shape, data.shaped.plan, cost), folder.path / "shape.json"
    if checkpoint is not None and path.exists():
        before = read_object(path, CheckpointError, "restore it, or begin anew with --restart")
        if any(before.get(name) != record[name] for name in ("draws", "weights")):
            rule = "the plan computed now differs, as the solver or the corpus has changed"
            raise CheckpointError(f"{path}: {rule}; continue on the first machine, or choose another --run.name")
    show(summary_of_shape(experiment.shape, data.shaped.plan, cost))
    return record


def move_aside(path: Path) -> Path:
    """Move a run folder aside under the first free name, with all but its lock, and return that name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.before-{number}")).exists():
        number += 1
    path.rename(aside)
    path.mkdir()
    for file in (path / LOCK_NAME, holder_file(path / LOCK_NAME)):
        (aside / file.name).rename(file)
    return aside


def describe_start(
    experiment: Experiment, folder: RunFolder, checkpoint: Checkpoint | None, threads: int
) -> dict[str, Any]:
    """Describe the code, machine and data of this start; a resume is added to what the first one wrote.

    Raises: CheckpointError for other data.
    """
    shards, first = shard_folder(experiment.data), folder.environment()
    digest = digest_of_data(shards)
    if checkpoint is not None and None not in (digest, first.get("data")) and digest != first["data"]:
        raise CheckpointError(
            f"{shards}: holds other shards or another tokenizer than the run was started with "
            f"(SHA-256 {digest}, expected {first['data']}); restore them, or choose another --run.name"
        )
    now = {"data": digest, **describe_environment(experiment.run.seed, threads)}
    if checkpoint is None or not first:
        return now
    resumes = first.get("resumes", [])
    warn_of_changes(folder.path / "environment.json", [first, *resumes][-1], now)
    return {**first, "resumes": [*resumes, {"consumed_tokens": checkpoint.consumed_tokens, **now}]}


def warn_of_changes(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warn, in one line, of threads and versions that are not those of a run's last start."""
    old, new = ({**one.get("versions", {}), "threads": one.get("threads")} for one in (before, now))
    names = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    if names:
        differ = "; ".join(f"{name} {new.get(name)}, was {old.get(name)}" for name in names)
        show(f"{path}: {differ}: losses may differ in their last digits from here on", error=True)


def announce(experiment: Experiment, checkpoint: Checkpoint | None) -> str:
    """Format the run's size, its attention kernel, whether blocks are compiled, and the reasons."""
    train, device = experiment.train, training_device(experiment)
    backend, reason = choose_backend(experiment, device)
    compiled, why = choose_compile(experiment, device)
    start = f"; continues at {checkpoint.consumed_tokens:,} tokens" if checkpoint else ""
    shared = f", each pack shared by {train.context_parallel} processes" if train.context_parallel > 1 else ""
    dtype = torch.bfloat16 if computes_in_bf16(experiment, device) else torch.float32
    lines = [
        f"run: {experiment.run.path}: {experiment.model.n_parameters():,} parameters, {train.steps:,} steps of "
        f"{train.batch_tokens:,} tokens on {device.type}{shared}{start}",
        f"attention: {backend} ({reason})",
        f"compiled blocks: {'yes' if compiled else 'no'} ({why})",
        devices.describe(dtype) if device.type == "cpu" else None,
        *reductions(experiment),
        base_warning(experiment.model.theta, experiment.data.window),
    ]
    return "\n".join(filter(None, lines))


def reductions(experiment: Experiment) -> list[str]:
    """List the position methods that change nothing at their given values."""
    frequency, distance, window = experiment.frequencies, experiment.position.distance, experiment.data.window
    rope = frequencies("rope", head_dim=experiment.model.head_dim, theta=experiment.model.theta)
    last, keys = torch.tensor([window - 1]), torch.arange(window)
    lines = []
    same = torch.equal(frequency.at_length(window).inv_freq, rope.inv_freq)
    if frequency.method != "rope" and same and bool((frequency.logit_factor(keys, layer=1 << 30) == 1).all()):
        lines.append(f"position.frequency: {describe(frequency.config)} is plain RoPE at these values")
    if not distance.is_plain and torch.equal(distance.rel_pos(last, keys), last[:, None] - keys.double()):
        lines.append(f"position.distance: {describe(distance)} is plain distance at these values")
    return lines
