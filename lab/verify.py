"""Check every file of a run folder, a checkpoint or a folder of shards, and what they record of each other.

    python -m lab.verify PATH

    python -m lab.verify runs/tiny_2k                               config, records, counts, every checkpoint
    python -m lab.verify runs/tiny_2k/checkpoints/tokens-000010485760
    python -m lab.verify shards/slimpajama-0123456789               every shard, the tokenizer
    python -m lab.verify shards/slimpajama-0123456789/task-00003    one of them

Nothing is changed. What earlier versions wrote is checked by what they recorded.

Exit status: 0 no fault; 1 faults, one line for each; 2 invalid input; 75 interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.bars import Bar
from lab.command import Syntax, Words, run, show, start
from lab.config import load_experiment
from lab.counts import SavedCounts
from lab.data.manifest import (
    MANIFEST,
    PREPARED,
    again,
    check_folder,
    digest_of_data,
    read_manifest,
    read_prepared,
    shards_in,
)
from lab.data.preparation import shard_folder
from lab.errors import CheckpointError, ConfigError, LabError
from lab.files import FileEntry, file_fault, is_sealed, read_object
from lab.formats import KEY
from lab.probe.haystacks import KEPT
from lab.train import checkpoints
from lab.train.folder import RECORDS, RunFolder

SYNTAX = Syntax(missing="PATH: must be the first argument, a run folder, a checkpoint or a folder of shards")
MANIFEST_KEYS = {KEY, "consumed_tokens", "files", "sha256"}
RESTORE = "restore it"
OTHER = "use another checkpoint"
DAMAGED = 1
BAR_AFTER_S = 1.0


class Audit:
    """What has been read, and the faults that were found."""

    def __init__(self, total_bytes: int) -> None:
        self.faults: list[str] = []
        self.n_files, self.n_bytes = 0, 0
        self.bar = Bar(total=total_bytes, desc="verify", unit="B", unit_scale=True, delay=BAR_AFTER_S)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Note a fault, and go on with the next part."""
        try:
            yield
        except LabError as error:
            self.faults += str(error).splitlines()
        except OSError as error:
            self.faults.append(f"{error.filename}: cannot be read ({error.strerror}); {RESTORE}")

    def read(self, path: Path) -> Path:
        """Count a file that is read."""
        if path.is_file():
            size = path.stat().st_size
            self.n_files, self.n_bytes = self.n_files + 1, self.n_bytes + size
            self.bar.update(size)
        return path

    def files(self, folder: Path, files: Mapping[str, FileEntry], known: set[str], record: str, remedy: str) -> None:
        """Hash the files that a record lists; those that it does not list are faults, unless hidden or `known`."""
        for name, entry in files.items():
            if fault := file_fault(self.read(folder / name), entry, hashes=True):
                self.faults.append(f"{folder / name}: {fault}; {remedy}")
        for path in sorted(folder.iterdir()):
            if path.name not in known | files.keys() and not path.name.startswith("."):
                self.faults.append(f"{path}: is not listed in {record}; move it elsewhere")


def verify_shards(folder: Path, audit: Audit) -> None:
    """Check a folder of shards."""
    audit.read(folder / PREPARED)
    with audit.part():
        record = read_prepared(folder)
        if record is None:
            audit.faults.append(f"{folder / PREPARED}: is missing; run lab.prepare again")
        for name in record["files"] if record is not None else ():
            audit.read(folder / name)
        check_folder(folder)
    for shard in shards_in(folder):
        verify_shard(shard, audit)


def verify_shard(shard: Path, audit: Audit) -> None:
    """Check the files of one shard."""
    with audit.part():
        manifest = read_manifest(shard)
        audit.read(shard / MANIFEST)
        audit.files(shard, manifest["files"], {MANIFEST}, "its manifest", again(shard))


def verify_checkpoint(folder: Path, audit: Audit) -> None:
    """Check a checkpoint's files and its manifest."""
    path = folder / checkpoints.MANIFEST
    with audit.part():
        files = checkpoints.read_files(folder)
        manifest = read_object(audit.read(path), CheckpointError, OTHER)
        consumed = manifest.get("consumed_tokens")
        if manifest.keys() - MANIFEST_KEYS or ("sha256" in manifest and not is_sealed(manifest)):
            audit.faults.append(f"{path}: does not match its own SHA-256; {OTHER}")
        elif not isinstance(consumed, int) or checkpoints.folder_name(consumed) != folder.name:
            audit.faults.append(f"{path}: consumed_tokens={consumed}: must be that of {folder.name}; {OTHER}")
        audit.files(folder, files, {checkpoints.MANIFEST}, "its manifest", OTHER)


def verify_run(path: Path, audit: Audit) -> None:
    """Check a run folder: settings, records, haystack, counts, checkpoints, and the shards' and tokenizer's hashes."""
    folder = RunFolder(path)
    with audit.part():
        verify_settings(folder, audit)
    for name in RECORDS:
        with audit.part():
            consumed = [record["consumed_tokens"] for record in folder.records(audit.read(path / name).name)]
            if consumed != sorted(consumed):
                audit.faults.append(f"{path / name}: consumed_tokens decrease; {RESTORE}")
    verify_probes(folder, audit)
    with audit.part():
        verify_haystack(folder, audit)
    for counts in [path / "counts.npz", *sorted(path.glob("counts/tokens-*.npz"))]:
        with audit.part():
            if counts.exists():
                SavedCounts.read(audit.read(counts))
    for name in ("impact.json", "shape.json"):
        with audit.part():
            if (path / name).exists():
                read_object(audit.read(path / name), CheckpointError, RESTORE)
    found = checkpoints.candidates(folder.checkpoints)
    with audit.part():
        if not found and not checkpoints.is_untrained(folder.checkpoints):
            audit.faults.append(f"{folder.checkpoints}: holds no checkpoint; restore one")
    for checkpoint in found:
        verify_checkpoint(checkpoint, audit)


def verify_settings(folder: RunFolder, audit: Audit) -> None:
    """Check the settings, the environment and the tokenizer of a run.

    Raises: LabError.
    """
    for name in ("config.yaml", "environment.json", "tokenizer.json"):
        if not audit.read(folder.path / name).is_file():
            audit.faults.append(f"{folder.path / name}: is missing; {RESTORE}")
    data, recorded = None, folder.environment().get("data")
    with audit.part():
        data = shard_folder(load_experiment(folder.path / "config.yaml").data)
    if data is None or recorded is None or (digest := digest_of_data(data)) is None:
        return
    if digest != recorded:
        audit.faults.append(f"{data}: has SHA-256 {digest}, the run was started with {recorded}; {RESTORE}")
        return
    prepared = read_prepared(data)
    path = folder.path / "tokenizer.json"
    if prepared is not None and (fault := file_fault(path, prepared["files"][path.name], hashes=True)):
        audit.faults.append(f"{path}: {fault}; {RESTORE}")


def verify_probes(folder: RunFolder, audit: Audit) -> None:
    """Check that every complete probe has its cases, and that they can be read."""
    with audit.part():
        for record in folder.probes():
            name = f"cases/{checkpoints.folder_name(record['consumed_tokens'])}.jsonl"
            if not audit.read(folder.path / name).is_file():
                audit.faults.append(f"{folder.path / name}: is missing; {RESTORE}")
            for _ in folder.read(name):
                pass


def verify_haystack(folder: RunFolder, audit: Audit) -> None:
    """Check that the text which the run keeps for its probes is that of its last probe.

    Raises: CheckpointError.
    """
    path, recorded = folder.path / KEPT, [record.get("haystack") for record in folder.records("probes.jsonl")]
    last = next(filter(None, reversed(recorded)), None)
    if not audit.read(path).is_file():
        return  # as of a haystack above 1 MB, or of an earlier version
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if last is not None and not digest.startswith(last):
        audit.faults.append(f"{path}: has SHA-256 {digest[:16]}, the last probe read {last}; {RESTORE}")


def choose(path: Path) -> Callable[[Path, Audit], None]:
    """Choose how a path is verified by what it holds.

    Raises: ConfigError.
    """
    if path.is_dir():
        if checkpoints.NAME.fullmatch(path.name):
            return verify_checkpoint
        if (path / PREPARED).exists() or any(path.glob("task-*")):
            return verify_shards
        if path.name.startswith("task-"):
            return verify_shard
        if any((path / name).exists() for name in ("config.yaml", "environment.json", "checkpoints")):
            return verify_run
    raise ConfigError(f"PATH={path}: is no run folder, checkpoint or folder of shards; name one of these")


def carry_out(words: Words) -> int | str:
    """Verify a path, print every fault, and return the exit status or what was read.

    Raises: ConfigError.
    """
    if words.settings:
        raise ConfigError(f"--{next(iter(words.settings))}: unknown option; leave it out")
    path = Path(words.places[0])
    verify = choose(path)
    audit = Audit(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    with audit.bar:
        verify(path, audit)
    read = f"{audit.n_files:,} files, {audit.n_bytes:,} bytes"
    if not audit.faults:
        return f"{read}: no fault"
    for line in dict.fromkeys(audit.faults):
        show(line, error=True)
    show(f"{read}: {len(dict.fromkeys(audit.faults))} faults", error=True)
    return DAMAGED


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(__doc__, arguments, carry_out, syntax=SYNTAX)


if __name__ == "__main__":
    start(main)
