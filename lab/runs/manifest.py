"""The manifest of a run folder: which run it is, and the size and SHA-256 of each file that is read again.

    {"run": DIGEST, "files": {"config.yaml": {"bytes": 1234, "sha256": "..."}, "cases/tokens-000000250000.jsonl": ...}}

The digest is that of the settings and data that training depends on; every checkpoint of the run has it as well. Files
of records grow: their entries are those of their first bytes, up to the last checkpoint or probe. A file is sealed,
that is entered, when it has been written, and never again from what lies on the disk, so that a later fault stays one.
"""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from lab.errors import CheckpointError
from lab.files import FileEntry, entries_of, file_fault, read_object, sha256, write_json

MANIFEST = "manifest.json"
RUN, FILES = "run", "files"
RECORDS = ("metrics.jsonl", "probes.jsonl")
READ = ("config.yaml", "environment.json", "tokenizer.json", "haystack.txt", "plan.json", "impact.json", "plugins/")
"""What evaluations of the model, and a resume, read; of names that end in a slash all files."""
RESTORE = "restore it, or begin anew with --restart"
OF_PROBES = ("cases/", "counts/")
SEALING = threading.Lock()  # a checkpoint may be published by a thread while a probe is recorded
SETTLE_S = 0.5  # a run in training replaces a file shortly before its entry


def read_manifest(folder: Path) -> tuple[str, dict[str, FileEntry]]:
    """Read the digest of a run and the entries of its files.

    Raises: CheckpointError.
    """
    manifest = read_object(folder / MANIFEST, CheckpointError, RESTORE)
    files, run = entries_of(manifest), manifest.get(RUN)
    if files is None or not isinstance(run, str):
        raise CheckpointError(f"{folder / MANIFEST}: is not that of a run; {RESTORE}")
    return run, files


def seal(folder: Path, names: Iterable[str]) -> None:
    """Enter files as they have been written, those that are there.

    Records whose first bytes have changed keep their entry, by which they are refused.
    """
    with SEALING:
        run, files = read_manifest(folder)
        for name in names:
            path = folder / name
            if path.is_file() and not (name in RECORDS and name in files and is_changed(path, files[name])):
                size = path.stat().st_size  # records may grow while they are hashed
                files[name] = {"bytes": size, "sha256": sha256(path, size)}
        write_json(folder / MANIFEST, {RUN: run, FILES: dict(sorted(files.items()))})


def forget(folder: Path, run: str, names: Iterable[str]) -> None:
    """Drop the entries of files that a run of this digest, which may be a new one, is about to write or delete."""
    files = read_manifest(folder)[1] if (folder / MANIFEST).exists() else {}
    kept = {name: entry for name, entry in files.items() if name not in {*names}}
    write_json(folder / MANIFEST, {RUN: run, FILES: kept})


def is_changed(path: Path, entry: FileEntry) -> bool:
    return file_fault(path, entry, hashes=True, grows=True) is not None


def faults_of(folder: Path, names: Iterable[str] = (), *, hashes: bool = True) -> list[str]:
    """List how files differ from their entries, all files or those named, a line each.

    Raises: CheckpointError where there is no manifest.
    """
    wanted = tuple(names)

    def differing() -> list[str]:
        entries = {n: entry for n, entry in read_manifest(folder)[1].items() if not wanted or n.startswith(wanted)}
        faults = {n: file_fault(folder / n, e, hashes=hashes, grows=n in RECORDS) for n, e in entries.items()}
        return [f"{folder / name}: {fault}; restore it" for name, fault in faults.items() if fault]

    if faults := differing():
        time.sleep(SETTLE_S)
        faults = differing()
    return faults


def check_files(folder: Path, names: Iterable[str] = READ) -> None:
    """Refuse a run folder of which a named file is not what was written.

    A run that has not begun has no manifest, nor has one that was unpacked from a table of records.

    Raises: CheckpointError.
    """
    if not (folder / MANIFEST).exists():
        return
    if faults := faults_of(folder, names):
        raise CheckpointError("\n".join(faults))
