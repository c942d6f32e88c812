"""Run commands as child processes, several at a time, and pass on signals to them.

Every child leads a process group of its own, so that Ctrl-C in a terminal reaches it once, from here. The first signal
is passed on as SIGTERM: a training saves and ends with status 75. A second Ctrl-C kills the groups. Children end when
this process does, however it ends (on Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from lab.command import STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
POLL_S = 0.2
COPY_S = 1.0  # a Ctrl-C this soon after another signal is the same one, from the terminal and a launcher
PR_SET_PDEATHSIG = 1  # prctl(2)
KILLED = 128  # plus the number of the signal, as shells do


@dataclass(frozen=True)
class Job:
    """A command to run, and where its stdout and stderr are appended; without `output` they are those of this process.

    `environment` adds to this process's own variables.
    """

    name: str
    words: Sequence[str]
    output: Path | None = None
    environment: Mapping[str, str] | None = None


class Children:
    """The child processes of a `with` block, and the signals that they were sent."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.asked_at: float | None = None
        self.kill_all = self.passed_on = False
        self.library = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before a fork, not after it

    def __enter__(self) -> Children:
        """Record signals from now on; `ended` acts on them, as a handler could run while a child is being started."""
        self.handlers: dict[int, Any] = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        """Kill what still runs, after an error, and restore the handlers."""
        for child in self.running.values():
            kill(child)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked this process to stop."""
        return self.asked_at is not None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Record a signal."""
        now = time.monotonic()
        if self.asked_at is None:
            self.asked_at = now
        elif number == signal.SIGINT and now - self.asked_at > COPY_S:
            self.kill_all = True

    def start(self, job: Job) -> None:
        """Start a job.

        Raises: OSError where its command cannot be started.
        """
        output = None if job.output is None else job.output.open("ab")
        try:
            self.running[job.name] = subprocess.Popen(
                job.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                env={**os.environ, **(job.environment or {})},
                process_group=0,
                preexec_fn=partial(end_with, os.getpid(), self.library),  # noqa: PLW1509  only the thread that forks runs Python here
            )
        finally:
            if output:
                output.close()

    def ended(self) -> dict[str, int]:
        """Pass on a signal that has come, and return the status of each job that has ended since the last call."""
        if self.kill_all:
            for child in self.running.values():
                kill(child)
        elif self.stopping and not self.passed_on:
            self.passed_on = True
            for child in self.running.values():
                child.send_signal(signal.SIGTERM)
        found = {name: status for name, child in self.running.items() if (status := child.poll()) is not None}
        for name in found:
            del self.running[name]
        return {name: status if status >= 0 else KILLED - status for name, status in found.items()}


def end_with(parent: int, library: ctypes.CDLL | None) -> None:
    """Have the kernel kill this process when its parent, whose number is given, ends; exec keeps that."""
    if library is not None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its whole process group at once."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_jobs(
    jobs: Iterable[Job],
    at_once: int = 1,
    *,
    is_done: Callable[[Job], bool] = lambda job: False,
    on_end: Callable[[Job, int], object] = lambda job, status: None,
) -> int:
    """Run jobs in order, so many at once, and return 0, the status of the first that failed, or STOPPED after a signal.

    Jobs that are done already are skipped, so that the same call continues after a stop. `on_end` records the end of a
    job before the next one starts. After a failure those that run are waited for, and no other is started.

    Raises: OSError where a command cannot be started.
    """
    left = [job for job in jobs if not is_done(job)][::-1]
    known = {job.name: job for job in left}
    failed = 0
    with Children() as children:
        while children.running or (left and not failed and not children.stopping):
            while left and not failed and not children.stopping and len(children.running) < at_once:
                children.start(left.pop())
            for name, status in children.ended().items():
                on_end(known[name], status)
                failed = failed or status
            if children.running:
                time.sleep(POLL_S)
        return STOPPED if children.stopping and (failed or left) else failed
