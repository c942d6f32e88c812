"""Locks of folders: one process at a time writes to a folder.

A process holds a lock by flock(2) on a file in the folder, which the kernel frees when the process ends. A sidecar file
names the holder, for the message to others. Processes that the holder starts do not inherit the lock. A file system
without flock is rejected, because a file alone would outlast a killed process.
"""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lab.core.errors import InUse
from lab.core.files import on_disk, writing

LOCK_NAME = ".lock"
POLL_S = 0.1


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, whose folder is made where it is missing, during the body; delete its files at the end.

    Raises: InUse where another process holds it, unless it is to be waited for; ConfigError where it cannot be written.
    """
    with writing(str(path), "folder"), on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # filelock's soft lock is a file that a killed process leaves behind, so that nobody could ever take it.
        # Another process may hold a lock for a moment, to see whether it is held.
        lock = FileLock(path, timeout=-1 if wait else 0.5, fallback_to_soft=False)
        try:
            lock.acquire(poll_interval=POLL_S)
        except Timeout:
            raise InUse(in_use(path)) from None
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = {"host": platform.node(), "pid": os.getpid(), "since": since}
        holder_file(path).write_text(json.dumps(holder), encoding="utf-8")
    try:
        yield
    finally:
        # Before the release: afterwards, the files may be those of the next holder.
        for file in (holder_file(path), path):
            with suppress(OSError):
                file.unlink()
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether any process holds the lock of a file."""
    if not path.exists():
        return False
    try:
        with locked(path):
            return False
    except InUse:
        return True


def in_use(path: Path) -> str:
    """Describe who holds the lock of a folder, and what to do."""
    # The file may not exist yet, or be cut off because its process was killed. Some file systems also deny a lock by
    # the error of one that is held.
    try:
        holder = json.loads(holder_file(path).read_text("utf-8"))
    except (OSError, ValueError):
        return f"{path.parent}: cannot be locked, and no process says that it holds the lock; try again, or elsewhere"
    by = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    return f"{path.parent}: is in use by {by}; wait for it, or end it: kill {holder['pid']}"


def holder_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")
