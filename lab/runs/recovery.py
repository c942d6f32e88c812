"""What a run resumes from: the state in a checkpoint, its records that are whole, and whether the run has ended.

A save, a resume and lab.verify check the state. Every stream has given one pack to each step. The tokens that were
counted are the consumed tokens.

A checkpoint lists the first bytes of each record, as they were when it was saved. A record that has lost its end, as
after a loss of power, can be continued at a checkpoint if it begins with these bytes. What followed them is lost, and
the resumed run writes it again.
"""

from contextlib import suppress
from pathlib import Path

import numpy as np

from lab.core.errors import CheckpointError
from lab.core.files import FileEntry, file_error
from lab.core.types import Row
from lab.counts import COUNTED
from lab.results.store import parse_record
from lab.runs.checkpoints import (
    CONSUMED,
    COUNTS,
    MANIFEST,
    PROBES,
    RECORDS,
    RESTORE,
    Checkpoint,
    probe_of,
    read_run_manifest,
    rejecting,
)
from lab.runs.folder import RunFolder, ends_with_line

PARTS = ("step", "skipped_steps", "schedule", "data", "recording", "final", "optimizer", "shared")
"""Parts of state.ckpt, next to consumed_tokens, from which a run continues.

`schedule` is the state of torch's LambdaLR, `recording` that of lab.train.record.Recording, and `optimizer` the numbers
of each parameter. `data` has `streams`, the states of the packs' streams, int64 (n_streams, 2 + look_ahead): see
lab.data.packing.
"""


def read_state(checkpoint: Checkpoint) -> Row:
    """Read a checkpoint's state.ckpt without running code from it.

    Raises: CheckpointError, also where a part is missing or parts do not agree.
    """
    import torch  # takes seconds, which what only looks for checkpoints need not wait

    with rejecting(checkpoint.state):
        state: Row = torch.load(checkpoint.state, map_location="cpu", weights_only=True, mmap=True)
        check_state(state)
        if state["consumed_tokens"] != checkpoint.consumed_tokens:
            raise ValueError(f"consumed_tokens: {state['consumed_tokens']}, its name has {checkpoint.consumed_tokens}")
        return state


def check_state(state: Row) -> None:
    """Check that a state has all parts, and that they agree.

    Raises: ValueError.
    """
    for name in PARTS:
        if name not in state:
            raise ValueError(f"{name}: is missing")
    counts = state["recording"]["counts"]
    for name in COUNTED:
        # lengths[n] counts segments of n tokens, n from 0 to max_len; all others are by distance, from 0 to max_len - 1
        if len(counts[name]) != counts["max_len"] + (name == "lengths"):
            raise ValueError("recording.counts: have another size than max_len states")
    # Segments whose ids have gaps are counted pair by pair: the pairs at distance 0 are their tokens.
    counted = sum(length * n for length, n in enumerate(counts["lengths"])) + sum(counts["gapped"][:1])
    if counted != state["consumed_tokens"]:
        raise ValueError(f"recording.counts: are of {counted} tokens, consumed_tokens are {state['consumed_tokens']}")
    streams = np.asarray(state["data"].get("streams"))
    if streams.dtype != np.int64 or streams.ndim != 2 or (streams[:, 0] != state["step"]).any():
        raise ValueError(f"data.streams: must be int64 (n_streams, 2 + look_ahead), of {state['step']} packs each")


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
    # Three sources tell what the files must be, the last one in most detail: the checkpoint, by the first bytes of the
    # records that it continues (None in old ones); the records, which have probes with files of their own; the manifest
    # of the run. A manifest of an older backup lists less than the other two.
    for name, entry in ((saved or {}) | missing_files(folder) | read_run_manifest(folder.path)[1]).items():
        path, is_record, probe = folder.path / name, name in RECORDS, probe_of(name)
        # Other files do not grow, and those of later probes are written again.
        if not is_record and not 0 <= probe <= at:
            continue
        # Probes before the checkpoint are old: their size is compared, but not their hash.
        error = file_error(path, entry, hashes=is_record or probe == at, grows=is_record)
        if is_record and not error and saved is not None:
            size = saved[name]["bytes"] if name in saved else 0
            error = find_broken_line(path, max(size, entry["bytes"]), at)
        if saved and name in saved and (lost := file_error(path, saved[name], hashes=True, grows=True)):
            raise CheckpointError(f"{path}: {error or lost}, and is not whole up to the checkpoint; {RESTORE}")
        if error:
            if saved is None or 0 <= probe < at:
                raise CheckpointError(f"{path}: {error}; {RESTORE}")
            # If a file of the probe at the checkpoint is lost, its lines go as well, and the probe is run again.
            record = PROBES if probe == at else name
            sizes[record] = saved[record]["bytes"] if record in saved else 0
        elif is_record and not ends_with_line(path):
            error = "its last line has no end"
        if error:
            losses.append(f"{path}: {error}; what is lost was written after {after}, and is measured again")
    return sizes, losses


def reaches(folder: RunFolder, checkpoint: Checkpoint) -> bool:
    """Return whether the records of a run are whole up to a checkpoint."""
    with suppress(CheckpointError):
        return bool(find_losses(folder, checkpoint))
    return False


def missing_files(folder: RunFolder) -> dict[str, FileEntry]:
    """Return entries for the files that recorded probes lack, which the manifest of an older backup does not list."""
    missing: dict[str, FileEntry] = {}
    with suppress(CheckpointError):  # a broken line, which others report
        for probe in folder.probes():
            for path in folder.files_of_probe(probe[CONSUMED]):
                if not path.exists():
                    missing[path.relative_to(folder.path).as_posix()] = {"bytes": 0, "sha256": ""}
    return missing


def find_broken_line(path: Path, begin: int, consumed_tokens: int) -> str | None:
    """Return the error of a record that has a broken line after its first `begin` bytes, or one out of order, or None.

    After a loss of power, a record may have zeros in place of data that was not yet written, and data after them.
    `consumed_tokens` are those of the checkpoint, which these lines follow.
    """
    last = consumed_tokens + (path.name != PROBES)  # a probe follows the checkpoint of its step
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            if not line.endswith(b"\n"):  # its readers skip a last line without its end
                break
            try:
                consumed = parse_record(path, 0, line, [CONSUMED])[CONSUMED]
            except CheckpointError:
                return f"the line that ends at byte {file.tell():,} is no record"
            if consumed < last:
                return f"the line that ends at byte {file.tell():,} is of an earlier step"
            last = consumed
    return None


def is_run_finished(folder: RunFolder, checkpoint: Checkpoint | None, steps: int, *, probes: bool = True) -> bool:
    """Return whether the newest whole checkpoint is of the last step, and the probe that ends the run is recorded.

    A run without `probes` ends without one. Counts of an older backup are not those of the checkpoint: a resume writes
    them again.
    """
    if checkpoint is None or find_losses(folder, checkpoint)[1]:
        return False
    if file_error(folder.path / COUNTS, checkpoint.files[COUNTS], hashes=True):
        return False
    at = checkpoint.consumed_tokens
    if probes and all(probe[CONSUMED] < at for probe in folder.probes()):
        return False
    return any(line.get("step", 0) >= steps and line[CONSUMED] <= at for line in folder.records("metrics.jsonl"))
