"""Where a run starts: anew, at a checkpoint, or not at all; and the files that a start writes first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lab.command import show
from lab.config import Experiment, load_experiment
from lab.data.module import PackedData
from lab.data.preparation import digest_of_data, shard_folder, summarise
from lab.data.selecting import read_token_types, result_file
from lab.data.shaped import shape_record, summary_of_shape
from lab.data.tokenizer import load_tokenizer
from lab.errors import CheckpointError, ConfigError, DiskError
from lab.files import disk_fault, free_bytes, read_object, remove_leftovers, write_atomic, write_json, writing
from lab.launch import Launch
from lab.lock import NAME, holder_file, locked
from lab.probe.haystacks import KEPT, text_to_keep
from lab.probe.protocols import window_warning
from lab.source import tokenizer_of
from lab.train import checkpoints
from lab.train.arms import changes
from lab.train.environment import describe_environment
from lab.train.folder import RunFolder
from lab.train.state import refuse_incomplete

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
        with locked(path / NAME):
            remove_leftovers(path)
            shutil.rmtree(path / "checkpoints" / checkpoints.TEMPORARY, ignore_errors=True)
            yield
    finally:
        with suppress(OSError):
            path.rmdir()  # nothing was written


def find_start(
    experiment: Experiment, folder: RunFolder, resume: bool, launch: Launch
) -> checkpoints.Checkpoint | None:
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
    folder.environment()  # refuses a folder of an unknown format
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
        refuse_incomplete(found)
    return found


def start_folder(
    experiment: Experiment,
    folder: RunFolder,
    checkpoint: checkpoints.Checkpoint | None,
    data: PackedData,
    threads: int,
    *,
    restart: bool = False,
) -> None:
    """Write the files that describe the run, after the last checks; on a resume, add to them and drop later records.

    A new run is marked as untrained before anything else is written; a `restart` first moves the old one aside.

    Raises: LabError.
    """
    shards = shard_folder(experiment.data)
    tokenizer = load_tokenizer(shards)
    check_vocabulary(experiment)
    warning = window_warning(experiment.tests, tokenizer, experiment.reach)
    token_types = choose_token_types(experiment, folder, checkpoint)
    show("\n".join(filter(None, (f"data: {summarise(shards).summary}", warning))))
    shape = planned_shape(experiment, folder, checkpoint, data)
    if restart and any(not entry.name.startswith(NAME) for entry in folder.path.iterdir()):
        show(f"{folder.path}: moved to {move_aside(folder.path)}")
    refuse_full_disk(experiment, folder, checkpoint)
    if checkpoint is None:
        checkpoints.mark_untrained(folder.checkpoints)
    environment = describe_start(experiment, folder, checkpoint, threads)
    folder.rewind(checkpoint.consumed_tokens if checkpoint else -1)
    write_json(folder.path / "environment.json", environment)
    write_atomic(folder.path / "tokenizer.json", (shards / "tokenizer.json").read_bytes())
    if checkpoint is None:
        probe = experiment.probe
        text = text_to_keep(probe.haystack, experiment.data, tokenizer, probe.longest(experiment.data.window))
        (folder.path / KEPT).unlink(missing_ok=True)
        if text is not None:
            write_atomic(folder.path / KEPT, text.encode())
    write_atomic(folder.path / "config.yaml", experiment.to_yaml().encode("utf-8"))
    if token_types is not None:
        write_atomic(folder.token_types, token_types)
    if shape is not None:
        write_json(folder.path / "shape.json", shape)


def check_vocabulary(experiment: Experiment) -> None:
    """Refuse a model with fewer embeddings than tokens, and weights that were trained with another tokenizer.

    Raises: ConfigError.
    """
    ours = load_tokenizer(shard_folder(experiment.data)).get_vocab()
    if len(ours) > experiment.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size={experiment.model.vocab_size}: the tokenizer has {len(ours)} tokens; use {len(ours)} or "
            "more"
        )
    start = experiment.start
    own = tokenizer_of(Path(start.path)) if start is not None else None
    if start is not None and own is not None:
        differ = len(load_tokenizer(own).get_vocab().items() ^ ours.items())
        if differ:
            raise ConfigError(
                f"data.tokenizer: is not the one that start.path={start.path} was trained with ({differ} entries "
                "differ); leave data.tokenizer out"
            )


def choose_token_types(
    experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None
) -> bytes | None:
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
    experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None, data: PackedData
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
    for file in (path / NAME, holder_file(path / NAME)):
        (aside / file.name).rename(file)
    return aside


def refuse_full_disk(experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None) -> None:
    """Refuse to start without room for two checkpoints and counts, or for the second one where there is a first.

    Raises: DiskError.
    """
    weights = experiment.model.n_parameters() * WEIGHT_BYTES
    needed = (2 if checkpoint is None else 1) * (weights + 2 * experiment.reach * POSITION_BYTES)
    if free_bytes(folder.path) < needed:
        raise DiskError(disk_fault(folder.path, needed, "checkpoints until the first is replaced, and counts"))


def describe_start(
    experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None, threads: int
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
    environment = {"data": digest, **describe_environment(experiment.run.seed, threads)}
    if checkpoint is None or not first:
        return environment
    resumes = first.get("resumes")
    resumes = resumes if isinstance(resumes, list) else []
    warn_of_changes(folder.path / "environment.json", resumes[-1] if resumes else first, environment)
    return {**first, "resumes": [*resumes, {"consumed_tokens": checkpoint.consumed_tokens, **environment}]}


def warn_of_changes(path: Path, before: Any, now: dict[str, Any]) -> None:
    """Warn, in one line, of threads and versions that are not those of a run's last start."""
    then = before if isinstance(before, dict) else {}
    versions = then.get("versions")
    old = {**(versions if isinstance(versions, dict) else {}), "threads": then.get("threads")}
    new = {**now["versions"], "threads": now["threads"]}
    names = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    differ = [f"{name} {new.get(name)}, was {old.get(name)}" for name in names]
    if differ:
        show(f"{path}: {'; '.join(differ)}: losses may differ in their last digits from here on", error=True)
