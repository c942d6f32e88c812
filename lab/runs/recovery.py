"""What of a run's records is whole where a run resumes, and whether the run has ended.

A checkpoint lists the first bytes of each record, as they were when it was saved. A record that has lost its end, as
after a loss of power, can be continued at a checkpoint if it begins with these bytes. What followed them is lost, and
the resumed run writes it again.
"""

from functools import partial
from pathlib import Path

from lab.core.errors import CheckpointError
from lab.core.files import file_fault
from lab.runs.checkpoints import ANEW, MANIFEST, RESTORE, Checkpoint, read_manifest, refuse
from lab.runs.folder import RunFolder
from lab.runs.manifest import PROBES, RECORDS, probe_of
from lab.runs.records import ends_with_line


def find_losses(folder: RunFolder, checkpoint: Checkpoint | None) -> tuple[dict[str, int], list[str]]:
    """Find the records that lost what followed a checkpoint; None is the start of the run.

    Returns the bytes that are whole of each such record, and a line for each file that lost something.

    Raises: CheckpointError where something is lost that was written before the checkpoint.
    """
    at = -1 if checkpoint is None else checkpoint.consumed_tokens
    after = "the start" if checkpoint is None else f"the checkpoint at {at:,} tokens"
    saved = {} if checkpoint is None else checkpoint.records
    sizes: dict[str, int] = {}
    losses: list[str] = []
    if not (folder.path / MANIFEST).exists():  # a new run
        return sizes, losses
    for name, entry in read_manifest(folder.path)[1].items():
        path, is_record, probe = folder.path / name, name in RECORDS, probe_of(name)
        # Other files do not grow, and those of later probes are written again.
        if not is_record and not 0 <= probe <= at:
            continue
        # Probes before the checkpoint are old: their size is compared, but not their hash.
        fault = file_fault(path, entry, hashes=is_record or probe == at, grows=is_record)
        if fault:
            if saved is None or 0 <= probe < at:
                raise CheckpointError(f"{path}: {fault}; {ANEW}")
            if checkpoint is not None and not begins_as_saved(path, checkpoint):
                rule = f"{path}: {fault}, and is not whole up to the checkpoint; {RESTORE}"
                refuse(checkpoint.folder, rule, partial(begins_as_saved, path))
            # If a file of the probe at the checkpoint is lost, its lines go as well, and the probe is run again.
            lost = PROBES if probe == at else name
            sizes[lost] = saved[lost]["bytes"] if lost in saved else 0
        elif is_record and not ends_with_line(path):
            fault = "its last line has no end"
        if fault:
            losses.append(f"{path}: {fault}; what is lost was written after {after}, and is measured again")
    return sizes, losses


def begins_as_saved(path: Path, checkpoint: Checkpoint) -> bool:
    """Return whether a record begins with the bytes that a checkpoint lists, if it lists any."""
    entry = (checkpoint.records or {}).get(path.name)
    return entry is None or file_fault(path, entry, hashes=True, grows=True) is None


def is_finished(folder: RunFolder, checkpoint: Checkpoint | None, steps: int, *, probes: bool = True) -> bool:
    """Return whether the newest whole checkpoint is of the last step, and the probe that ends the run is recorded.

    A run without `probes` ends without one.
    """
    if checkpoint is None or find_losses(folder, checkpoint)[1]:
        return False
    if probes and all(probe["consumed_tokens"] < checkpoint.consumed_tokens for probe in folder.probes()):
        return False
    for record in folder.records("metrics.jsonl"):
        if record.get("step", 0) >= steps and record["consumed_tokens"] <= checkpoint.consumed_tokens:
            return True
    return False
