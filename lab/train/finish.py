"""What a run folder records of its end; no torch."""

from __future__ import annotations

from lab.train.checkpoints import Checkpoint
from lab.train.folder import RunFolder


def is_finished(folder: RunFolder, checkpoint: Checkpoint | None, steps: int) -> bool:
    """Return whether the newest whole checkpoint is of the last step, and the probe that ends the run is recorded."""
    if checkpoint is None or all(r["consumed_tokens"] < checkpoint.consumed_tokens for r in folder.probes()):
        return False
    records = folder.records("metrics.jsonl")
    return any(r.get("step", 0) >= steps and r["consumed_tokens"] <= checkpoint.consumed_tokens for r in records)
