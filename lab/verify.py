"""Check every byte of a run folder, a checkpoint or a folder of shards against the SHA-256 in its manifests.

    probe-lab verify PATH

    probe-lab verify runs/tiny_2k                                   config, records, counts, every checkpoint
    probe-lab verify runs/tiny_2k/checkpoints/tokens-000010485760
    probe-lab verify shards/slimpajama-0123456789                   every shard, and the tokenizer
    probe-lab verify shards/slimpajama-0123456789/task-00003        one of them

Nothing is changed. Records of a run have no hashes: they are read, and their form is checked.

With faults, one line for each, the exit status is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lab.command import FAILED, Bar, Syntax, Words, run, show, start
from lab.config import load_experiment
from lab.counts import SavedCounts
from lab.data.shards import PREPARED, read_manifest, read_manifests
from lab.errors import CheckpointError, ConfigError, LabError
from lab.files import entries_of, file_fault, read_object
from lab.train import checkpoints
from lab.train.folder import RECORDS, RunFolder

SYNTAX = Syntax(missing="PATH: must be the first argument, a run folder, a checkpoint or a folder of shards")
MANIFEST = checkpoints.MANIFEST
RESTORE = "restore it"
SETTINGS = ("config.yaml", "environment.json", "tokenizer.json")
Check = Callable[[], object]  # raises a LabError for what is wrong, or an OSError for what cannot be read


def checks_of(path: Path) -> Iterator[Check]:
    """List the checks of a path by what it is, refusing one that is nothing of the lab's."""
    if checkpoints.NAME.fullmatch(path.name):
        yield partial(check_hashes, path, MANIFEST)
        yield partial(checkpoints.open_checkpoint, path)
        yield partial(checkpoints.read_state, checkpoints.Checkpoint(path), whole=True)
    elif path.name.startswith("task-"):
        yield partial(read_manifest, path)
        yield partial(check_hashes, path, MANIFEST)
    elif shards := sorted(path.glob("task-*")):
        yield partial(check_hashes, path, PREPARED, "task-*")
        yield partial(read_manifests, path)
        for shard in shards:
            yield partial(check_hashes, shard, MANIFEST)
    elif any((path / name).exists() for name in (*SETTINGS, "checkpoints")):
        yield from checks_of_run(RunFolder(path))
    else:
        raise ConfigError(f"PATH={path}: is no run folder, checkpoint or folder of shards; name one of these")


def check_hashes(folder: Path, name: str, known: str = MANIFEST) -> None:
    """Hash the files that a manifest lists; other files are faults, unless they are hidden or `known`."""
    files = entries_of(read_object(folder / name, CheckpointError, RESTORE)) or {}
    found = {path.name for path in folder.iterdir() if not (path.match(".*") or path.match(known))}
    differ = {listed: file_fault(folder / listed, entry, hashes=True) for listed, entry in files.items()}
    faults = [f"{folder / listed}: {fault}; {RESTORE}" for listed, fault in differ.items() if fault]
    faults += [f"{folder / other}: is not listed in {name}; move it elsewhere" for other in found - {name, *files}]
    if faults:
        raise CheckpointError("\n".join(sorted(faults)))


def checks_of_run(folder: RunFolder) -> Iterator[Check]:
    """List the checks of a run folder: settings, records, counts, and every checkpoint."""
    path = folder.path
    yield partial(load_experiment, path / "config.yaml")
    yield folder.environment
    yield from ((path / name).read_bytes for name in SETTINGS)
    for name in RECORDS:
        yield partial(check_order, folder, name)
    yield from (partial(list, folder.read(f"cases/{cases.name}")) for cases in sorted(path.glob("cases/*.jsonl")))
    for counts in (*path.glob("counts.npz"), *sorted(path.glob("counts/tokens-*.npz"))):
        yield partial(SavedCounts.read, counts)
    for saved in checkpoints.candidates(folder.checkpoints):
        yield from checks_of(saved)
    if not checkpoints.is_untrained(folder.checkpoints):
        yield partial(checkpoints.open_checkpoint, path)


def check_order(folder: RunFolder, name: str) -> None:
    """Refuse records that are broken or out of order."""
    consumed = [record["consumed_tokens"] for record in folder.records(name)]
    if consumed != sorted(consumed):
        raise CheckpointError(f"{folder.path / name}: consumed_tokens decrease; {RESTORE}")


def carry_out(words: Words) -> int:
    """Verify a path, print every fault and what was read, and return the exit status."""
    if words.settings:
        raise ConfigError(f"--{next(iter(words.settings))}: unknown option; leave it out")
    path = Path(words.places[0])
    faults: list[str] = []
    for check in Bar(list(checks_of(path)), desc="verify", leave=False):
        try:
            check()
        except LabError as error:
            faults += str(error).splitlines()
        except OSError as error:
            faults.append(f"{error.filename}: cannot be read ({error.strerror}); {RESTORE}")
    sizes = [file.stat().st_size for file in path.rglob("[!.]*") if file.is_file()]
    for line in dict.fromkeys(faults):
        show(line, error=True)
    count = f"{len(set(faults))} faults" if faults else "no fault"
    show(f"{len(sizes):,} files, {sum(sizes):,} bytes: {count}", error=bool(faults))
    return FAILED if faults else 0


main = partial(run, __doc__, work=carry_out, syntax=SYNTAX)


if __name__ == "__main__":
    start(main)
