"""One process at a time writes to a folder: a lock by flock(2), which ends with its process, however that ends.

The lock is a file in the folder. A second file beside it names the holder, for the message to others. Processes that
the holder starts do not inherit the lock. A file system without flock is refused: a lock that only exists as a file
would outlast a killed process.
"""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lab.errors import ConfigError, InUse
from lab.files import on_disk, writing

NAME = ".lock"
POLL_S = 0.1
GRACE_S = 0.5  # another process may hold a lock for a moment, to see whether it is held
NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def acquire(path: Path, *, wait: bool = False) -> FileLock:
    """Take the lock of a file, whose folder is made where it is missing.

    Raises: InUse where another process holds it, unless it is to be waited for; ConfigError where it cannot be written.
    """
    with writing(str(path), "folder"), on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, fallback_to_soft=False)
        try:
            lock.acquire(timeout=-1 if wait else GRACE_S, poll_interval=POLL_S)
        except Timeout:
            raise InUse(in_use(path)) from None
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            raise ConfigError(
                f"{path.parent}: its file system has no locks of files (flock); name a folder on another one"
            ) from error
        holder_file(path).write_text(json.dumps(describe_process()), encoding="utf-8")
    return lock


def release(lock: FileLock) -> None:
    """Give up a lock, and delete its files while it is still held."""
    path = Path(lock.lock_file)
    for file in (holder_file(path), path):
        with suppress(OSError):
            file.unlink()
    lock.release()


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file during the body.

    Raises: InUse, ConfigError.
    """
    lock = acquire(path, wait=wait)
    try:
        yield
    finally:
        release(lock)


def is_held(path: Path) -> bool:
    """Return whether any process holds the lock of a file."""
    if not path.exists():
        return False
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def in_use(path: Path) -> str:
    """Describe who holds the lock of a folder, and what to do."""
    holder: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # not written yet, or by a process that was killed while writing it
        holder = json.loads(holder_file(path).read_text(encoding="utf-8"))
    pid, host, since = (holder.get(name, "unknown") for name in ("pid", "host", "since"))
    return f"{path.parent}: is in use by process {pid} on {host} since {since}; wait for it, or end it: kill {pid}"


def holder_file(path: Path) -> Path:
    """Return the file that names the holder of a lock."""
    return path.with_name(f"{path.name}.holder")


def describe_process() -> dict[str, Any]:
    """Describe this process."""
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"host": platform.node(), "pid": os.getpid(), "since": since}
