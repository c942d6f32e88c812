"""The manifest of a run folder: the size and SHA-256 of each file that is read again.

    {"run": DIGEST, "files": {"config.yaml": {"bytes": 1234, "sha256": "..."}, "cases/tokens-000000250000.jsonl": ...}}

The digest is that of the settings and data that training depends on; every checkpoint of the run has it as well. Files
of records grow: their entries are those of their first bytes, up to the last checkpoint or probe. A file is entered
when it has been written, and never again from what is on the disk by then, so that a later fault stays one.
"""

import math
import threading
import time
from collections.abc import Collection
from pathlib import Path

from lab.core.errors import CheckpointError
from lab.core.files import ALL, FileEntry, faults_in, file_fault, sha256, sync, write_json
from lab.runs.checkpoints import MANIFEST, NAME, RUN, read_manifest

BEGINS = "begins"
PROBES = "probes.jsonl"
RECORDS = ("metrics.jsonl", PROBES)
READ = ("config.yaml", "environment.json", "tokenizer.json", "haystack.txt", "impact.json", "plugins/")
"""What evaluations of the model, and a resume, read; of names that end in a slash all files."""
LOCK = threading.Lock()  # a checkpoint may be published by a thread while a probe is recorded
SETTLE_S = 0.5  # a run in training replaces a file shortly before its entry


def add_to_manifest(run: Path, names: Collection[str]) -> dict[str, FileEntry]:
    """Enter files as they have been written, those that are there, and return their entries."""
    with LOCK:
        digest, files = read_manifest(run)
        for name in names:
            path = run / name
            if path.is_file():
                # After a loss of power the manifest must not list more than the disk has.
                sync(path)
                sync(path.parent)
            # A record that no longer begins with the bytes of its entry was changed by somebody else: a new entry would
            # hide that.
            is_record = name in RECORDS and name in files
            if path.is_file() and not (is_record and file_fault(path, files[name], hashes=True, grows=True)):
                # The size is read first, and only so many bytes are hashed: records may grow meanwhile.
                size = path.stat().st_size
                files[name] = {"bytes": size, "sha256": sha256(path, size)}
        write_json(run / MANIFEST, {RUN: digest, "files": dict(sorted(files.items()))})
        return {name: files[name] for name in names if name in files}


def drop_from_manifest(run: Path, digest: str, names: Collection[str], after: float = math.inf) -> None:
    """Drop the entries of files that a run of this digest, which may be a new one, is about to write or delete.

    With them go the entries of probes after a number of consumed tokens. The manifest says that a part begins, until
    its files are entered: a run that is killed in between misses none.
    """
    files = read_manifest(run)[1] if (run / MANIFEST).exists() else {}
    entries = {}
    for name, entry in files.items():
        if name not in names and probe_of(name) <= after:
            entries[name] = entry
    write_json(run / MANIFEST, {RUN: digest, BEGINS: True, "files": entries})


def probe_of(name: str) -> int:
    """Return the consumed tokens of the probe that wrote a file, -1 for other files.

    Example:
        >>> probe_of("cases/tokens-000000000250000.jsonl"), probe_of("config.yaml")
        (250000, -1)
    """
    match = NAME.fullmatch(Path(name).stem)
    return int(match[1]) if match else -1


def find_faults(run: Path, wanted: tuple[str, ...] = ALL) -> list[str]:
    """List how files whose names begin as those `wanted` differ from their entries, a line each.

    Raises: CheckpointError where there is no manifest.
    """
    faults = compare_files(run, wanted)
    if faults:
        # A run in training replaces a file shortly before its entry: what differs then is the same a moment later.
        time.sleep(SETTLE_S)
        faults = compare_files(run, wanted)
    return faults


def compare_files(run: Path, wanted: tuple[str, ...]) -> list[str]:
    entries = {name: entry for name, entry in read_manifest(run)[1].items() if name.startswith(wanted)}
    return [f"{fault}; restore it" for fault in faults_in(run, entries, grow=RECORDS)]


def check_files(run: Path, names: tuple[str, ...] = READ) -> None:
    """Reject a run folder of which a named file is not what was written.

    A run that has not begun has no manifest, nor has one that was unpacked from a table of records.

    Raises: CheckpointError.
    """
    if (run / MANIFEST).exists() and (faults := find_faults(run, names)):
        raise CheckpointError("\n".join(faults))
