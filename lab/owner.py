"""One owner of a folder, or of a task, at a time: a process of this machine, or of another on the same file system.

A file names the owner: host, process, since when. A process of this machine is looked up by its number and its start
time, so that whatever a kill leaves is free at once. One of another machine, or of another container, counts as alive
as long as it touches the file, every BEAT_S seconds; after LIMIT_S without a beat, by the file system's own clock, the
file is taken over. flock(2) keeps two processes from reading and writing the file at the same time; where a file system
has none, the one that was overwritten notices at its next beat.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from lab.errors import InUse
from lab.files import on_disk, writing

NAME = ".owner"
BEAT_S, LIMIT_S, POLL_S = 5.0, 60.0, 0.2
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF)
RECORD_BYTES = 4096
Record = dict[str, Any]


class Owner:
    """This process, as the owner that a file names; `lost` is called with the record of one that has taken over."""

    def __init__(self, path: Path, lost: Callable[[Record], None]) -> None:
        self.path, self.lost = path, lost
        self.record = describe_process()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True, name=f"owner of {path}")

    def take(self, *, wait: bool) -> None:
        """Become the owner, after another that ends, or that has stopped touching the file.

        Raises: InUse where another is alive, unless it is to be waited for.
        """
        first: tuple[Any, float] | None = None
        while (other := self.claim()) is not None:
            seen = (other.get("token"), last_beat(self.path))
            first = first or seen
            if not wait and (is_of_this_machine(other) or seen != first):
                raise InUse(in_use(self.path, other))
            time.sleep(POLL_S)
        self.thread.start()

    def claim(self) -> Record | None:
        """Write this process into the file, unless another one in it is alive, which is returned."""
        descriptor = lock(self.path)
        assert descriptor is not None, "waits for the lock"
        try:
            other = parsed(os.pread(descriptor, RECORD_BYTES, 0))
            if other and is_alive(other, self.path):
                return other
            with on_disk(self.path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(self.record).encode() + b"\n", 0)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return None

    def beat(self) -> None:
        """Touch the file until the end, or until it names another."""
        while not self.ended.wait(BEAT_S):
            with suppress(OSError):
                found = read_owner(self.path)
                if found and found.get("token") != self.record["token"]:
                    self.lost(found)
                    return
                os.utime(self.path)

    def release(self) -> None:
        """Delete the file if it still names this process."""
        self.ended.set()
        self.thread.join()
        with suppress(OSError):
            if read_owner(self.path).get("token") == self.record["token"]:
                self.path.unlink()


def nobody(found: Record) -> None:
    """Ignore that another process has taken over."""


@contextmanager
def owned(path: Path, *, wait: bool = False, lost: Callable[[Record], None] = nobody) -> Iterator[Owner]:
    """Own what a file stands for during the body.

    Raises: InUse.
    """
    owner = Owner(path, lost)
    owner.take(wait=wait)
    try:
        yield owner
    finally:
        owner.release()


def find_owner(path: Path) -> Record | None:
    """Return the owner that a file names, if it is alive."""
    with suppress(OSError):
        other = read_owner(path)
        if other and is_alive(other, path):
            return other
    return None


def in_use(path: Path, owner: Record) -> str:
    """Describe who owns a file's folder, and what to do."""
    pid, host, since = (owner.get(name, "unknown") for name in ("pid", "host", "since"))
    return f"{path.parent}: is in use by process {pid} on {host} since {since}; wait for it, or end it: kill {pid}"


def read_owner(path: Path) -> Record:
    """Read an owner's file; empty where it names nobody."""
    return parsed(path.read_bytes())


def parsed(data: bytes) -> Record:
    """Parse an owner's record; one that was cut by a kill names nobody."""
    with suppress(ValueError):
        found = json.loads(data)
        return found if isinstance(found, dict) else {}
    return {}


def is_alive(owner: Record, path: Path) -> bool:
    """Return whether an owner is running, or, where that cannot be looked up, has touched its file lately."""
    if is_of_this_machine(owner):
        return isinstance(owner.get("pid"), int) and process_start(owner["pid"]) == owner.get("start")
    return now_on(path.parent) - last_beat(path) <= LIMIT_S


def is_of_this_machine(owner: Record) -> bool:
    """Return whether an owner's process can be looked up here."""
    return owner.get("machine") == machine() is not None


def last_beat(path: Path) -> float:
    """Return when a file was touched, after a look that network file systems answer from the server."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0.0


def now_on(folder: Path) -> float:
    """Return the time by the clock of a folder's file system, which another host's may differ from."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"0")
        file.flush()
        return os.fstat(file.fileno()).st_mtime


def describe_process() -> Record:
    """Describe this process."""
    pid = os.getpid()
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    start = process_start(pid)
    place = {"host": platform.node(), "machine": machine(), "pid": pid}
    return {**place, "start": start, "since": since, "token": secrets.token_hex(8)}


def machine() -> str | None:
    """Identify this boot of this machine and its process numbers, which each container may count by itself."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def process_start(pid: int) -> str | None:
    """Read when a process of this machine was started, in ticks since boot; None for one that has ended.

    Source: proc_pid_stat(5), fields 3 and 22.
    """
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]


def stat_fields(pid: int) -> list[str] | None:
    """Read the fields of /proc/PID/stat from the third on, the state; None for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the second field, a name in parentheses, may hold anything


def lock(path: Path, *, wait: bool = True) -> int | None:
    """Lock a file, and return its open descriptor, or None where another process has locked it and is not waited for.

    Raises: ConfigError where it cannot be written.
    """
    while True:
        with writing(str(path), "folder"), on_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # it was deleted by the one that held it
