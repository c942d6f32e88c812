"""Where a run starts: anew, at a checkpoint, or not at all; and the files that a start writes first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lab.command import WRONG, show
from lab.config import Experiment, load_experiment
from lab.data.manifest import digest_of_data
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.errors import CheckpointError, ConfigError, DiskError
from lab.files import disk_fault, free_bytes, remove_leftovers, write_atomic, write_json, writing
from lab.formats import FORMAT, KEY
from lab.launch import Launch
from lab.owner import NAME, Record, in_use, owned
from lab.probe.haystacks import KEPT, text_to_keep
from lab.train import checkpoints
from lab.train.changes import changes
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
        with owned(path / NAME, lost=end_at_once(path / NAME)):
            remove_leftovers(path, own=True)
            shutil.rmtree(path / "checkpoints" / checkpoints.TEMPORARY, ignore_errors=True)
            yield
    finally:
        with suppress(OSError):
            path.rmdir()  # nothing was written


def end_at_once(path: Path) -> Any:
    """Build the function that ends this process once another has taken over, as both would write."""

    def end(other: Record) -> None:
        show(f"{in_use(path, other)}; this process was silent for too long and ends", error=True)
        os._exit(WRONG)

    return end


def move_aside(path: Path) -> Path:
    """Move a run folder aside under the first free name, with all but its owner's file, and return that name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.before-{number}")).exists():
        number += 1
    path.rename(aside)
    path.mkdir()
    (aside / NAME).rename(path / NAME)
    return aside


def find_start(
    experiment: Experiment, folder: RunFolder, resume: bool, launch: Launch, echo: Any
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
    refuse_changes(experiment, load_experiment(config))
    if not launch.is_first:
        return None
    found, passed = checkpoints.newest(folder.checkpoints)
    if found is None and not checkpoints.is_untrained(folder.checkpoints):
        reason = passed[0].removesuffix("; skipped") if passed else "there is none"
        raise CheckpointError(f"{folder.checkpoints}: holds no whole checkpoint ({reason}); restore one, or {RESTART}")
    for line in passed:
        echo(line, error=True)
    if found is not None:
        refuse_incomplete(found)
    return found


def refuse_changes(now: Experiment, before: Experiment) -> None:
    """Refuse to resume with settings that would make it another run.

    Raises: ConfigError with a line for each setting that differs.
    """
    faults = [
        f"{key}={new}: the run was started with {old}; set it back, or choose another --run.name"
        for key, old, new in changes(before.to_dict(), now.to_dict())
    ]
    if faults:
        raise ConfigError(*faults)


def refuse_full_disk(experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None) -> None:
    """Refuse to start without room for two checkpoints and counts, or for the second one where there is a first.

    Raises: DiskError.
    """
    weights = experiment.model.n_parameters() * WEIGHT_BYTES
    needed = (2 if checkpoint is None else 1) * (weights + 2 * experiment.reach * POSITION_BYTES)
    if free_bytes(folder.path) < needed:
        raise DiskError(disk_fault(folder.path, needed, "checkpoints until the first is replaced, and counts"))


def start_folder(
    experiment: Experiment,
    folder: RunFolder,
    checkpoint: checkpoints.Checkpoint | None,
    threads: int,
    *,
    restart: bool = False,
) -> None:
    """Write the files that describe the run; on a resume, add to them and drop records after the checkpoint.

    A new run is marked as untrained before anything else is written; a `restart` first moves the old one aside.

    Raises: LabError.
    """
    if restart and any(entry.name != NAME for entry in folder.path.iterdir()):
        show(f"{folder.path}: moved to {move_aside(folder.path)}")
    refuse_full_disk(experiment, folder, checkpoint)
    if checkpoint is None:
        checkpoints.mark_untrained(folder.checkpoints)
    digest, first = digest_of_data(shard_folder(experiment.data)), folder.environment()
    if checkpoint is not None and None not in (digest, first.get("data")) and digest != first["data"]:
        raise CheckpointError(
            f"{shard_folder(experiment.data)}: holds other shards or another tokenizer than the run was started with "
            f"(SHA-256 {digest}, expected {first['data']}); restore them, or choose another --run.name"
        )
    environment = {KEY: FORMAT, "data": digest, **describe_environment(experiment.run.seed, threads)}
    if checkpoint is not None and first:
        resumes = first.get("resumes", [])
        last = resumes[-1] if isinstance(resumes, list) and resumes else first
        warn_of_changes(folder.path / "environment.json", last, environment)
        now = {"consumed_tokens": checkpoint.consumed_tokens, **environment}
        environment = {**first, "resumes": [*(resumes if isinstance(resumes, list) else []), now], KEY: FORMAT}
    folder.rewind(checkpoint.consumed_tokens if checkpoint else -1)
    write_json(folder.path / "environment.json", environment)
    tokenizer = shard_folder(experiment.data) / "tokenizer.json"
    write_atomic(folder.path / "tokenizer.json", tokenizer.read_bytes())
    if checkpoint is None:
        write_haystack(experiment, folder.path / KEPT)
    write_atomic(folder.path / "config.yaml", experiment.to_yaml().encode("utf-8"))


def write_haystack(experiment: Experiment, path: Path) -> None:
    """Write the haystack that the run folder keeps, if it keeps one; a resumed run reads what it began with.

    Raises: LabError.
    """
    data, probe = experiment.data, experiment.probe
    text = text_to_keep(probe.haystack, data, load_tokenizer(shard_folder(data)), probe.longest(data.window))
    if text is None:
        path.unlink(missing_ok=True)
    else:
        write_atomic(path, text.encode())


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
