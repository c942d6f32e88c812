"""Runs as child processes, one at a time for each run folder.

A sweep holds a lock of each run that it trains; the run's own process holds another one. stdout and stderr go to
sweep.log in the run folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from lab.data.preparation import is_prepared, prepare
from lab.errors import InUse
from lab.lock import NAME, acquire, is_held, locked
from lab.sweep.planning import Run, cores

LOG = "sweep.log"
LOCK = ".sweep.lock"
LAST_BYTES = 4096


def lock_run(run: Run) -> FileLock | None:
    """Lock a run for this sweep, or return None where another process runs it, of a sweep or by itself."""
    if is_held(run.path / NAME):
        return None
    with suppress(InUse):
        return acquire(run.path / LOCK)
    return None


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a run."""
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "OMP_NUM_THREADS": str(threads)}


def start(words: list[str], folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start a run in a process group of its own, so that Ctrl-C in the terminal reaches it once, from here."""
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(threads),
            process_group=0,
        )


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a run and all its processes at once."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def last_line(folder: Path) -> str:
    """Return the last line that a run printed, which names its error where it failed."""
    path = folder / LOG
    end = path.read_bytes()[-LAST_BYTES:].decode("utf-8", "replace") if path.exists() else ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", end) if line.strip()]
    return lines[-1] if lines else "no output"


def prepare_once(run: Run) -> None:
    """Prepare the shards of a run that lab.fit would prepare, while no other process prepares in the same folder.

    Raises: LabError.
    """
    data = run.experiment.data
    if not data.embedded or is_prepared(data):
        return
    with locked(Path(data.folder) / NAME, wait=True):
        if not is_prepared(data):
            prepare(data, workers=cores())
