"""Runs as child processes: one at a time for each run folder, each ending when this process does.

A run is locked by flock(2) on .lock in its folder. The child inherits the lock, which therefore lasts as long as it
does, even where this process is killed. stdout and stderr go to sweep.log in the run folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from lab.data.preparation import is_prepared, prepare
from lab.lifetime import end_with
from lab.owner import NAME, find_owner, lock
from lab.sweep.planning import Run, cores

LOG = "sweep.log"
LAST_BYTES = 4096


def lock_run(run: Run) -> int | None:
    """Lock a run folder, or return None where another process runs it, of a sweep or by itself."""
    if find_owner(run.path / NAME) is not None:
        return None
    return lock(run.path / ".lock", wait=False)


@contextmanager
def released(descriptor: int | None) -> Iterator[None]:
    """Close a lock's descriptor after the body."""
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a run."""
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "OMP_NUM_THREADS": str(threads)}


def start(words: list[str], folder: Path, held: int, threads: int) -> subprocess.Popen[bytes]:
    """Start a run in a process group of its own, so that Ctrl-C in the terminal reaches it once, from here."""
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(threads),
            pass_fds=(held,),
            process_group=0,
            preexec_fn=partial(end_with, os.getpid()),  # noqa: PLW1509  only the thread that forks runs Python here
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
    with released(lock(Path(data.folder) / ".lock")):
        if not is_prepared(data):
            prepare(data, workers=cores())
