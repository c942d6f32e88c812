"""What a run folder records of its beginning and its end; no torch."""

from __future__ import annotations

import json
from pathlib import Path

from lab.runs.checkpoints import Checkpoint
from lab.runs.folder import RunFolder


def is_finished(folder: RunFolder, checkpoint: Checkpoint | None, steps: int) -> bool:
    """Return whether the newest whole checkpoint is of the last step, and the probe that ends the run is recorded."""
    if checkpoint is None or all(r["consumed_tokens"] < checkpoint.consumed_tokens for r in folder.probes()):
        return False
    records = folder.read("metrics.jsonl")
    return any(r["step"] >= steps and r["consumed_tokens"] <= checkpoint.consumed_tokens for r in records)


def recorded_threads(run: Path) -> int | None:
    """Return the CPU threads that a run began with, or None for one that has not begun."""
    path = run / "environment.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["threads"]) if path.exists() else None
