"""The run folder, the primary record of a run; a dashboard mirrors it.

config.yaml       the resolved experiment
environment.json  commit, uncommitted changes, versions, hardware, seed, threads; the same for every resume
manifest.json     which run this is, and the size and SHA-256 of each file that is read again, as below
metrics.jsonl     one object per logged step
probes.jsonl      one object per probed length, and one per probe; `failed`, the reason, where a probe failed
cases/            every test of every probe, one file per probe
counts.npz        `lengths`, the histogram of segment lengths, `f`, the position frequency, `tokens`, consumed,
                  `supervised`, targets that have a loss by visible context, and `supervised_f`;
                  `g`, the demand, `g_unweighted`, that of all scored targets, and where ids have gaps `g_by_ids`
counts/           the same at every probe, compressed: tokens-000000250000.npz; lab.counts.SavedCounts reads both
checkpoints/      see lab.runs.checkpoints
tokenizer.json    a copy of the shards' own; with it and the haystack, a copy of the folder is probed without the shards
haystack.txt      the text that probes hide numbers in, where it has 1 MB at most; see lab.probe.needles.text_to_keep
plugins/          copies of the plugins
impact.json       the impactful token types that select sentences, copied when the run began

    {"run": DIGEST, "files": {"config.yaml": {"bytes": 1234, "sha256": "..."}, "cases/tokens-000000250000.jsonl": ...}}

The digest is that of the settings and data that training depends on; every checkpoint of the run has it as well. Files
of records grow: their entries are those of their first bytes, up to the last checkpoint or probe. A file is sealed,
that is entered, when it has been written, and never again from what lies on the disk, so that a later fault stays one.
"""

import io
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lab.core.errors import CheckpointError, DiskError
from lab.core.files import (
    ALL,
    FileEntry,
    disk_fault,
    faults_in,
    file_fault,
    read_object,
    sha256,
    sync,
    write_atomic,
    write_json,
    write_parts,
)
from lab.counts import PositionCounts
from lab.counts.saved import OF_KIND
from lab.runs.checkpoints import (
    ANEW,
    CONSUMED,
    COUNTS,
    MANIFEST,
    NAME,
    RUN,
    Checkpoint,
    candidates,
    folder_name,
    read_manifest,
)
from lab.runs.records import read_lines

Record = dict[str, Any]
BEGINS = "begins"
PROBES = "probes.jsonl"
RECORDS = ("metrics.jsonl", PROBES)
READ = ("config.yaml", "environment.json", "tokenizer.json", "haystack.txt", "impact.json", "plugins/")
"""What evaluations of the model, and a resume, read; of names that end in a slash all files."""
SEALING = threading.Lock()  # a checkpoint may be published by a thread while a probe is recorded
SETTLE_S = 0.5  # a run in training replaces a file shortly before its entry


class RunFolder:
    """Writes and reads one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.token_types = path / "impact.json"

    def holds_records(self) -> bool:
        files = [self.path / name for name in (*RECORDS, "counts.npz")]
        return any(path.exists() for path in [*files, *candidates(self.checkpoints)])

    def environment(self) -> Record:
        """Read environment.json; empty where there is none.

        Raises: CheckpointError.
        """
        path = self.path / "environment.json"
        return read_object(path, CheckpointError, ANEW) if path.exists() else {}

    def threads(self) -> int | None:
        """Read the CPU threads that the run began with, or None for one that has not begun.

        Raises: CheckpointError.
        """
        environment = self.environment()
        if environment and not isinstance(environment.get("threads"), int):
            raise CheckpointError(f"{self.path / 'environment.json'}: states no threads; {ANEW}")
        return environment.get("threads")

    def append(self, name: str, *records: Record) -> None:
        """Append complete lines to a .jsonl file, all or none.

        Raises: DiskError.
        """
        path = self.path / name
        size = path.stat().st_size if path.is_file() else 0
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        try:
            with path.open("ab") as file:
                file.write(lines)
        except OSError as error:  # of any kind: what cannot be recorded must not be trained
            with suppress(OSError):
                os.truncate(path, size)
            raise DiskError(disk_fault(path, len(lines), error.strerror or "")) from error

    def read(self, name: str, *needed: str) -> Iterator[Record]:
        """Read a .jsonl file, each line of which has the numbers needed; a last line truncated by a crash is skipped.

        Raises: CheckpointError for any other broken line, or a file that cannot be read.
        """
        return (record for _, record in read_lines(self.path / name, needed))

    def records(self, name: str) -> Iterator[Record]:
        """Read a record of training, each line of which has consumed_tokens.

        Raises: CheckpointError.
        """
        return self.read(name, "consumed_tokens")

    def write_records(self, name: str, records: Iterable[Record]) -> None:
        write_parts(self.path / name, (json.dumps(record).encode() + b"\n" for record in records))

    def rewind(self, consumed_tokens: int, sizes: Mapping[str, int] = MappingProxyType({})) -> None:
        """Drop records after a checkpoint, which a resumed run writes again, and probes incomplete or failed there.

        `sizes` are the bytes that are whole of records that have lost something.
        """
        probed = set()
        for _, record in read_lines(self.path / PROBES, [CONSUMED], sizes.get(PROBES)):
            if "effective_length" in record or ("failed" in record and record[CONSUMED] < consumed_tokens):
                probed.add(record[CONSUMED])

        def is_kept(name: str, record: Record) -> bool:
            return record[CONSUMED] <= consumed_tokens and (name != PROBES or record[CONSUMED] in probed)

        for name in RECORDS:
            if (self.path / name).exists():
                lines = read_lines(self.path / name, [CONSUMED], sizes.get(name))
                write_parts(self.path / name, (line for line, record in lines if is_kept(name, record)))
        for path in self.of_probes_after(consumed_tokens - (PROBES in sizes)):
            path.unlink()

    def of_probes_after(self, consumed_tokens: int) -> list[Path]:
        files = [*self.path.glob("cases/tokens-*.jsonl"), *self.path.glob("counts/tokens-*.npz")]
        return [path for path in files if probe_of(path.name) > consumed_tokens]

    def begin(
        self, files: Mapping[str, bytes | Record], run: str, checkpoint: Checkpoint | None, sizes: Mapping[str, int]
    ) -> None:
        """Write the files that describe a run, and drop the records after its checkpoint.

        What is to change is no longer sealed, so that a kill in between leaves nothing that contradicts the manifest.
        """
        consumed = -1 if checkpoint is None else checkpoint.consumed_tokens
        drop_from_manifest(self.path, run, [*files, *RECORDS], after=consumed - (PROBES in sizes))
        self.rewind(consumed, sizes)
        if checkpoint is None:
            (self.path / "counts.npz").unlink(missing_ok=True)
        else:
            write_atomic(self.path / "counts.npz", (checkpoint.folder / COUNTS).read_bytes())
        for name, content in files.items():
            if isinstance(content, bytes):
                write_atomic(self.path / name, content)
            else:
                write_json(self.path / name, content)
        add_to_manifest(self.path, [*files, *RECORDS])

    def probes(self) -> Iterator[Record]:
        """Read the summaries, each the last line of a complete probe."""
        return (record for record in self.records("probes.jsonl") if "effective_length" in record)

    def last_probe(self) -> int:
        """Read the consumed tokens of the last probe, complete or failed, 0 before the first."""
        ends = (r for r in self.records("probes.jsonl") if "effective_length" in r or "failed" in r)
        return max((record["consumed_tokens"] for record in ends), default=0)

    def write_counts(self, counts: PositionCounts, consumed_tokens: int | None = None) -> None:
        """Save the position frequency, or that at one probe."""
        if consumed_tokens is None:
            write_atomic(self.path / "counts.npz", packed_counts(counts))
        else:
            path = self.path / f"counts/{folder_name(consumed_tokens)}.npz"
            write_atomic(path, packed_counts(counts, np.savez_compressed))

    def write_cases(self, consumed_tokens: int, cases: Iterable[Record]) -> None:
        self.write_records(f"cases/{folder_name(consumed_tokens)}.jsonl", cases)


def add_to_manifest(run: Path, names: Collection[str]) -> dict[str, FileEntry]:
    """Enter files as they have been written, those that are there, and return their entries.

    They are on the disk before the manifest is. Records whose first bytes have changed keep their entry, by which they
    are refused.
    """
    with SEALING:
        digest, files = read_manifest(run)
        for name in names:
            path = run / name
            if path.is_file():
                sync(path)  # after a loss of power a manifest must not list more than the disk has
                sync(path.parent)
            is_record = name in RECORDS and name in files
            if path.is_file() and not (is_record and file_fault(path, files[name], hashes=True, grows=True)):
                size = path.stat().st_size  # records may grow while they are hashed
                files[name] = {"bytes": size, "sha256": sha256(path, size)}
        write_json(run / MANIFEST, {RUN: digest, "files": dict(sorted(files.items()))})
        return {name: files[name] for name in names if name in files}


def drop_from_manifest(run: Path, digest: str, names: Collection[str], after: float = math.inf) -> None:
    """Drop the entries of files that a run of this digest, which may be a new one, is about to write or delete.

    With them go the entries of probes after a number of consumed tokens. The manifest says that a part begins, until
    its files are sealed: a run that is killed in between misses none.
    """
    files = read_manifest(run)[1] if (run / MANIFEST).exists() else {}
    entries = {n: entry for n, entry in files.items() if n not in names and probe_of(n) <= after}
    write_json(run / MANIFEST, {RUN: digest, BEGINS: True, "files": entries})


def probe_of(name: str) -> int:
    """Return the consumed tokens of the probe that a file is of, -1 for other files.

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

    def differing() -> list[str]:
        entries = {name: entry for name, entry in read_manifest(run)[1].items() if name.startswith(wanted)}
        faults = faults_in(run, entries, grow=RECORDS)
        return [f"{fault}; restore it" for fault in faults]

    if faults := differing():
        time.sleep(SETTLE_S)
        faults = differing()
    return faults


def check_files(run: Path, names: tuple[str, ...] = READ) -> None:
    """Refuse a run folder of which a named file is not what was written.

    A run that has not begun has no manifest, nor has one that was unpacked from a table of records.

    Raises: CheckpointError.
    """
    if (run / MANIFEST).exists() and (faults := find_faults(run, names)):
        raise CheckpointError("\n".join(faults))


def packed_counts(counts: PositionCounts, save: Callable[..., None] = np.savez) -> bytes:
    """Build the contents of counts.npz."""
    buffer = io.BytesIO()
    targets: Record = {"supervised": counts.supervised, "supervised_f": counts.supervised_f()}
    targets |= {"g": counts.g(), "g_unweighted": counts.evidence}
    if counts.has_gaps:
        targets["g_by_ids"] = counts.g(by_ids=True)
    targets |= {OF_KIND + kind: counts.frequency(kind) for kind in counts.encoded}
    save(buffer, lengths=counts.lengths, f=counts.frequency(), tokens=counts.tokens, **targets)
    return buffer.getvalue()
