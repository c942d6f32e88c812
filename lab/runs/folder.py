"""The run folder, the primary record of a run; a dashboard mirrors it.

config.yaml       the resolved experiment
environment.json  commit, uncommitted changes, versions, hardware, seed, threads; the same for every resume; and
                  `start_tokens`, the consumed tokens at which a branch continues another run
manifest.json     which run this is, and the size and SHA-256 of each file that is read again: lab/runs/checkpoints.py
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
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from lab.core.command import show
from lab.core.errors import CheckpointError, DiskError
from lab.core.files import delete, disk_error, read_object, write_atomic, write_json, write_parts
from lab.core.types import Row
from lab.counts import PositionCounts
from lab.counts.saved import OF_KIND
from lab.results.store import read_lines
from lab.runs.checkpoints import (
    ANEW,
    CONSUMED,
    COUNTS,
    PROBES,
    RECORDS,
    Checkpoint,
    add_to_manifest,
    candidates,
    drop_from_manifest,
    folder_name,
    probe_of,
)


class RunFolder:
    """Writes and reads one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.token_types = path / "impact.json"

    def holds_records(self) -> bool:
        if candidates(self.checkpoints):
            return True
        return any((self.path / name).exists() for name in (*RECORDS, COUNTS))

    def environment(self) -> Row:
        """Read environment.json; empty where there is none.

        Raises: CheckpointError.
        """
        path = self.path / "environment.json"
        return read_object(path, CheckpointError, ANEW) if path.exists() else {}

    def threads(self) -> int | None:
        """Read the CPU threads that the run started with, or None for one that has not started."""
        return self.environment().get("threads")

    def append(self, name: str, *records: Row) -> None:
        """Append complete lines to a .jsonl file, all or none.

        Raises: DiskError.
        """
        path = self.path / name
        size = path.stat().st_size if path.is_file() else 0
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        try:
            with path.open("ab") as file:
                file.write(lines)
        except OSError as error:  # any: what cannot be recorded must not be trained
            # The beginning of a line that is cut here would join the first line of a resume.
            with suppress(OSError):
                os.truncate(path, size)
            raise DiskError(disk_error(path, len(lines), error.strerror or "")) from error

    def records(self, name: str) -> Iterator[Row]:
        """Read a record of training, each line of which has consumed_tokens; a line truncated by a crash is skipped.

        Raises: CheckpointError for any other broken line, or a file that cannot be read.
        """
        for _, record in read_lines(self.path / name, [CONSUMED]):
            yield record

    def write_records(self, name: str, records: Iterable[Row]) -> None:
        write_parts(self.path / name, (json.dumps(record).encode() + b"\n" for record in records))

    def rewind(self, consumed_tokens: int, sizes: Mapping[str, int] = {}) -> None:
        """Drop records after a checkpoint, which a resumed run writes again, and probes incomplete or failed there.

        `sizes` are the bytes that are whole of records that have lost something.
        """
        # A probe writes a line per length, then its summary. Without a summary it was cut short, and all its lines go.
        # One that failed at the checkpoint is measured again, while one that failed before it stays a failure.
        probed = set()
        for _, record in read_lines(self.path / PROBES, [CONSUMED], sizes.get(PROBES)):
            if "effective_length" in record or ("failed" in record and record[CONSUMED] < consumed_tokens):
                probed.add(record[CONSUMED])

        def is_kept(name: str, record: Row) -> bool:
            return record[CONSUMED] <= consumed_tokens and (name != PROBES or record[CONSUMED] in probed)

        for name in RECORDS:
            if (self.path / name).exists():
                lines = read_lines(self.path / name, [CONSUMED], sizes.get(name))
                write_parts(self.path / name, (line for line, record in lines if is_kept(name, record)))
        last = last_whole_probe(consumed_tokens, sizes)
        for path in [*self.path.glob("cases/tokens-*.jsonl"), *self.path.glob("counts/tokens-*.npz")]:
            if probe_of(path.name) > last:
                path.unlink()

    def begin(
        self, files: Mapping[str, bytes | Row], run: str, checkpoint: Checkpoint | None, sizes: Mapping[str, int]
    ) -> None:
        """Write the files that describe a run, and drop the records and checkpoints after its checkpoint.

        `sizes` are those of `rewind`.
        """
        consumed = -1 if checkpoint is None else checkpoint.consumed_tokens
        # Those of a decay that a longer run does not have. The newest goes first: after a kill the others follow.
        for later in candidates(self.checkpoints):
            if 0 <= consumed < probe_of(later.name):
                delete(later)
                show(f"{later}: deleted, and the records after {consumed:,} tokens; the longer run decays later")
        # First the entries go, then the files change: a kill in between leaves nothing that contradicts the manifest.
        drop_from_manifest(self.path, run, [*files, *RECORDS], after=last_whole_probe(consumed, sizes))
        self.rewind(consumed, sizes)
        if checkpoint is None:
            (self.path / COUNTS).unlink(missing_ok=True)
        else:
            # A kill between a checkpoint and the counts of the run leaves these one save behind. After a second such
            # kill they would be of a checkpoint that is gone.
            write_atomic(self.path / COUNTS, (checkpoint.folder / COUNTS).read_bytes())
        for name, content in files.items():
            if isinstance(content, bytes):
                write_atomic(self.path / name, content)
            else:
                write_json(self.path / name, content)
        add_to_manifest(self.path, [*files, *RECORDS])

    def probes(self) -> Iterator[Row]:
        """Read the summaries, each the last line of a complete probe."""
        return (record for record in self.records(PROBES) if "effective_length" in record)

    def last_probe(self) -> int:
        """Read the consumed tokens of the last probe, complete or failed; before it those that the run began with."""
        ends = ("effective_length", "failed")
        first = self.environment().get("start_tokens", 0)
        return max((record[CONSUMED] for record in self.records(PROBES) if record.keys() & ends), default=first)

    def write_counts(self, counts: PositionCounts, consumed_tokens: int | None = None) -> None:
        """Save the position frequency, or that at one probe."""
        if consumed_tokens is None:
            write_atomic(self.path / COUNTS, packed_counts(counts))
        else:
            write_atomic(self.files_of_probe(consumed_tokens)[0], packed_counts(counts, np.savez_compressed))

    def write_cases(self, consumed_tokens: int, cases: Iterable[Row]) -> None:
        self.write_records(f"cases/{folder_name(consumed_tokens)}.jsonl", cases)

    def files_of_probe(self, consumed_tokens: int) -> tuple[Path, Path]:
        """Return the paths of the counts and tests of one probe."""
        name = folder_name(consumed_tokens)
        return self.path / f"counts/{name}.npz", self.path / f"cases/{name}.jsonl"


def last_whole_probe(consumed_tokens: int, sizes: Mapping[str, int]) -> int:
    """Return the consumed tokens up to which the files of probes stay at a resume.

    A probe follows the checkpoint of its step. If the records of probes have lost their end, that of this checkpoint is
    measured again.
    """
    return consumed_tokens - 1 if PROBES in sizes else consumed_tokens


def packed_counts(counts: PositionCounts, save: Callable[..., None] = np.savez) -> bytes:
    """Build the contents of counts.npz."""
    arrays: Row = {
        "lengths": counts.lengths,
        "f": counts.frequency(),
        "tokens": counts.tokens,
        "supervised": counts.supervised,
        "supervised_f": counts.supervised_f(),
        "g": counts.g(),
        "g_unweighted": counts.evidence,
    }
    if counts.has_gaps:
        arrays["g_by_ids"] = counts.demand_by_ids
    for layers in counts.encoded:
        arrays[OF_KIND + layers] = counts.frequency(layers)
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def ends_with_line(path: Path) -> bool:
    """Return whether a file is empty or its last line has an end."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        return file.read() in (b"", b"\n")
