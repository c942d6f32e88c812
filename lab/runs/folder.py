"""The run folder, the primary record of a run; dashboards mirror it.

config.yaml       the resolved experiment
environment.json  commit, uncommitted changes, versions, hardware, seed, threads; the same for every resume
metrics.jsonl     one object per logged step
probes.jsonl      one object per probed length, and one per probe; `failed`, the reason, where a probe failed
cases/            every test of every probe, one file per probe
counts.npz        `lengths`, the histogram of segment lengths, `f`, the position frequency, `tokens`, consumed,
                  `supervised`, targets by visible context, `supervised_f`, and `weights`, of the loss, where planned
counts/           the same at every probe, compressed: tokens-000000250000.npz; lab.counts.SavedCounts reads both
checkpoints/      see lab.runs.checkpoints
impact.json       the impactful token types that select sentences, copied when the run began
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab.counts import PositionCounts
from lab.errors import CheckpointError
from lab.files import write_atomic

Record = dict[str, Any]


class RunFolder:
    """Writes and reads one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.token_types = path / "impact.json"

    def append(self, name: str, record: Record) -> None:
        """Append one complete line to a .jsonl file."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read(self, name: str) -> Iterator[Record]:
        """Read a .jsonl file; a last line truncated by a crash is left out.

        Raises: CheckpointError for any other broken line.
        """
        path = self.path / name
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                reason = f"line {number} is not JSON ({error})"
                raise CheckpointError(f"{path}: {reason}; correct or delete the line") from error

    def write_records(self, name: str, records: Iterable[Record]) -> None:
        """Replace a .jsonl file atomically."""
        write_atomic(self.path / name, "".join(json.dumps(record) + "\n" for record in records).encode())

    def rewind(self, consumed_tokens: int) -> None:
        """Drop records after a checkpoint, which a resumed run writes again, and probes incomplete or failed there."""
        whole = {record["consumed_tokens"] for record in self.probes()}
        whole |= {r["consumed_tokens"] for r in self.read("probes.jsonl") if "failed" in r} - {consumed_tokens}
        for name in ("metrics.jsonl", "probes.jsonl"):
            if (self.path / name).exists():
                kept = [r for r in self.read(name) if r["consumed_tokens"] <= consumed_tokens]
                if name == "probes.jsonl":
                    kept = [r for r in kept if r["consumed_tokens"] in whole]
                self.write_records(name, kept)
        for path in [*self.path.glob("cases/tokens-*.jsonl"), *self.path.glob("counts/tokens-*.npz")]:
            if int(path.stem.removeprefix("tokens-")) > consumed_tokens:
                path.unlink()

    def probes(self) -> Iterator[Record]:
        """Read the summaries, each the last line of a complete probe."""
        return (record for record in self.read("probes.jsonl") if "effective_length" in record)

    def last_probe(self) -> tuple[int, Record]:
        """Read the consumed tokens of the last probe, complete or failed, 0 before the first; and the last summary."""
        last = max(self.probes(), key=lambda record: record["consumed_tokens"], default={})
        failed = [record["consumed_tokens"] for record in self.read("probes.jsonl") if "failed" in record]
        return max([last.get("consumed_tokens", 0), *failed]), last

    def write_counts(self, counts: PositionCounts) -> None:
        """Save the position frequency."""
        write_atomic(self.path / "counts.npz", packed_counts(counts))

    def write_counts_at(self, consumed_tokens: int, counts: PositionCounts) -> None:
        """Save the position frequency at one probe."""
        write_atomic(
            self.path / f"counts/tokens-{consumed_tokens:015d}.npz", packed_counts(counts, np.savez_compressed)
        )

    def write_cases(self, consumed_tokens: int, cases: Iterable[Record]) -> None:
        """Save every test of one probe."""
        self.write_records(f"cases/tokens-{consumed_tokens:015d}.jsonl", cases)


def packed_counts(counts: PositionCounts, save: Callable[..., None] = np.savez) -> bytes:
    """Build the contents of counts.npz."""
    buffer = io.BytesIO()
    targets: Record = {"supervised": counts.supervised, "supervised_f": counts.supervised_f()}
    if counts.weights is not None:
        targets["weights"] = counts.weights
    save(buffer, lengths=counts.lengths, f=counts.frequency(), tokens=counts.tokens, **targets)
    return buffer.getvalue()
