"""Check every byte of a run folder, a checkpoint or a folder of shards against the SHA-256 in its manifests.

    probe-lab verify PATH [PATH ...]

    probe-lab verify runs/*
    probe-lab verify runs/tiny_2k/checkpoints/tokens-000010485760
    probe-lab verify shards/slimpajama-0123456789
    probe-lab verify shards/slimpajama-0123456789/task-00003

Of a run these are the config, the records, the counts and every checkpoint; of a folder of shards every shard and the
tokenizer.

Nothing is changed. Records grow: what was written of them after the last checkpoint or probe has no hash yet, and is
checked for whole lines in order.

With errors, one line for each, the exit status is 1.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lab.config import load_experiment
from lab.core.command import EXIT_FAILURE, Arguments, Bar, CommandSpec, run, show, start
from lab.core.errors import CheckpointError, ConfigError, DataError, LabError
from lab.core.files import errors_in, read_entries, read_object, sha256
from lab.data.config import hash_json
from lab.data.shards import PREPARED, read_manifests, read_prepared, read_shard_manifest
from lab.runs.checkpoints import (
    BEGINS,
    COUNTS,
    MANIFEST,
    NAME,
    RECORDS,
    RESTORE,
    Checkpoint,
    candidates,
    is_untrained,
    list_errors,
)
from lab.runs.folder import RunFolder
from lab.runs.recovery import missing_files, read_state

SPEC = CommandSpec(
    description=__doc__,
    positional=None,
    missing="PATH: must be the first argument, a run folder, a checkpoint or a folder of shards",
)
OF_A_RUN = ("config.yaml", "environment.json", "tokenizer.json")
Check = Callable[[], object]  # raises a LabError for what is wrong, or an OSError for what cannot be read


def list_checks(path: Path) -> Iterator[Check]:
    """List the checks of a path by what it is; reject one that is nothing of the lab's."""
    if NAME.fullmatch(path.name):
        yield partial(check_checkpoint, path)
    elif path.name.startswith("task-"):
        yield partial(read_shard_manifest, path)
        yield partial(check_hashes, path)
    elif shards := sorted(path.glob("task-*")):
        yield partial(check_hashes, path, PREPARED, "task-*")
        yield partial(check_identity, path)
        yield partial(read_manifests, path)
        for shard in shards:
            yield partial(check_hashes, shard)
    elif any((path / name).exists() for name in (*OF_A_RUN, "checkpoints")):
        yield from checks_of_run(RunFolder(path))
    else:
        raise ConfigError(f"PATH={path}: is no run folder, checkpoint or folder of shards; name one of these")


def check_hashes(folder: Path, name: str = MANIFEST, unlisted: str = MANIFEST) -> None:
    """Hash the files that the manifest `name` lists; others are errors, unless they are hidden or as `unlisted`."""
    files = read_entries(read_object(folder / name, CheckpointError, RESTORE)) or {}
    errors = [f"{error}; {RESTORE}" for error in errors_in(folder, files)]
    for path in folder.iterdir():
        # A hidden file is one that a kill left half written, or that the system keeps.
        if path.name not in (name, *files) and not path.match(".*") and not path.match(unlisted):
            errors.append(f"{path}: is not listed in {name}; move it elsewhere")
    if errors:
        raise CheckpointError("\n".join(sorted(errors)))


def check_checkpoint(path: Path) -> None:
    """Compare a checkpoint's run, hash its files and read its state, in this order: each needs what is before it."""
    checkpoint = Checkpoint(path)
    if checkpoint.files:  # raises for another run
        check_hashes(path)
    read_state(checkpoint)


def check_identity(folder: Path) -> None:
    """Reject a record of shards if its name is not the hash of the settings that it states."""
    record = read_prepared(folder)
    if record is not None and not record["name"].endswith(f"-{hash_json(record['identity'])[:10]}"):
        raise DataError(f"{folder / PREPARED}: name={record['name']}: is not that of its identity; {RESTORE}")


def checks_of_run(folder: RunFolder) -> Iterator[Check]:
    """List the checks of a run folder: every file that it has recorded, and every checkpoint."""
    path = folder.path
    yield partial(check_manifest, path)
    yield partial(load_experiment, path / "config.yaml")
    for name in RECORDS:
        yield partial(check_order, folder, name)
    for saved in candidates(folder.checkpoints):
        yield from list_checks(saved)
        yield partial(check_reached, folder, Checkpoint(saved))
    if not is_untrained(folder.checkpoints):
        yield partial(check_counts, folder)


def check_manifest(run: Path) -> None:
    """Hash the files of a run; that it began, and recorded the steps of its checkpoints, must be among them."""
    errors = list_errors(run)
    manifest = read_object(run / MANIFEST, CheckpointError, RESTORE)
    # A run that was killed as it began has not entered its files yet; a resume writes and enters them.
    if BEGINS not in manifest:
        needed = list(OF_A_RUN)
        if candidates(run / "checkpoints"):
            needed.append("metrics.jsonl")
        for name in needed:
            if name not in manifest["files"]:
                errors.append(f"{run / MANIFEST}: does not list {name}; {RESTORE}")
    if errors:
        raise CheckpointError("\n".join(errors))


def check_counts(folder: RunFolder) -> None:
    """Compare counts.npz with those of the checkpoints: the newest, or the one before if the run was killed there."""
    counts = folder.path / COUNTS
    hashes = [Checkpoint(saved).files[COUNTS]["sha256"] for saved in candidates(folder.checkpoints)]
    if not hashes:
        raise CheckpointError(f"{folder.path}: holds no checkpoint; restore the newest")
    if not counts.is_file() or sha256(counts) not in hashes:
        raise CheckpointError(f"{counts}: is not that of a checkpoint; copy the newest one's")


def check_reached(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Reject records that do not begin as a checkpoint continues them, and probes that lack a file.

    The manifest of an older backup does not list them.
    """
    errors = [*errors_in(folder.path, checkpoint.records or {}, grow=RECORDS)]
    errors += [f"{folder.path / name}: is missing" for name in missing_files(folder)]
    if errors:
        raise CheckpointError("\n".join(f"{error}; {RESTORE}" for error in errors))


def check_order(folder: RunFolder, name: str) -> None:
    """Reject records that are broken or out of order: every step is later than the one before."""
    consumed = step = -math.inf
    for record in folder.records(name):
        if record["consumed_tokens"] < consumed or record.get("step", math.inf) <= step:
            raise CheckpointError(f"{folder.path / name}: consumed_tokens or steps do not increase; {RESTORE}")
        consumed, step = record["consumed_tokens"], record.get("step", step)


def verify_paths(args: Arguments) -> int:
    """Verify paths, print every error and what was read, and return the exit status."""
    if args.settings:
        raise ConfigError(f"--{next(iter(args.settings))}: unknown option; leave it out")
    errors: list[str] = []
    checks: list[Check] = []
    files: set[Path] = set()  # a path may be inside another one
    for path in map(Path, args.positional):
        checks += list_checks(path)
        files.update(path.rglob("[!.]*"))
    for check in Bar(checks, desc="verify", leave=False):
        try:
            check()
        except LabError as error:
            errors += str(error).splitlines()
        except OSError as error:
            errors.append(f"{error.filename}: cannot be read ({error.strerror}); {RESTORE}")
    sizes = [file.stat().st_size for file in files if file.is_file()]
    summary = f"{len(sizes):,} files, {sum(sizes):,} bytes"
    if not errors:
        show(f"{summary}: no error")
        return 0
    lines = dict.fromkeys(errors)  # two checks may find the same
    show("\n".join([*lines, f"{summary}: {len(lines)} errors"]), error=True)
    return EXIT_FAILURE


main = partial(run, SPEC, verify_paths)


if __name__ == "__main__":
    start(main)
