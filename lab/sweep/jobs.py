"""Run commands as child processes, several at a time, and pass signals on to them.

Every child leads a process group of its own. A Ctrl-C in a terminal therefore reaches it once, from here. The first
signal is passed on as SIGTERM: a training saves and ends with status 75. A second Ctrl-C kills the groups. Children end
when this process does, however it ends (on Linux).
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from lab.config import Experiment, load_experiment
from lab.config.experiment import find_changes
from lab.core.command import EXIT_STOPPED
from lab.core.errors import ConfigError, LabError
from lab.core.launch import COPY_S
from lab.core.plugins import TRUSTED
from lab.core.startup import SIGNALS
from lab.runs.checkpoints import TENSORS, newest
from lab.runs.folder import RunFolder
from lab.runs.recovery import is_run_finished

POLL_S = 0.2
PR_SET_PDEATHSIG = 1  # prctl(2)
TAIL_BYTES = 8192
KILLED = 128  # plus the number of the signal, as shells do


@dataclass(frozen=True)
class Job:
    """A command to run, and the file that its output is appended to; default: it is printed."""

    name: str
    words: Sequence[str]
    output: Path | None = None

    @property
    def last_line(self) -> str:
        """The last line that was printed, which names the error of a command that failed."""
        if self.output is None:
            return "its output is above"
        tail = self.output.read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        return tail.splitlines()[-1].strip() if tail else "no output"


def run_jobs(
    jobs: Iterable[Job],
    at_once: int = 1,
    *,
    is_done: Callable[[Job], bool] = lambda job: False,
    on_end: Callable[[Job, int], object] = lambda job, status: None,
    goes_on: bool = False,
) -> int:
    """Run jobs in order, some at once; return 0, the status of the first that failed, or EXIT_STOPPED after a signal.

    A job that `is_done` when its turn comes is skipped. `on_end` is called before the next job starts. After a failure
    no other job starts, unless the rest `goes_on`.
    """
    moments: list[float] = []  # of the first signal, and of later ones by which the children are killed

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not moments or (number == signal.SIGINT and now - moments[0] > COPY_S):
            moments.append(now)

    left = list(jobs)
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    failed = signalled = 0
    # Between fork and exec a child must not load a library: another thread may have held a lock at the fork.
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    # The handlers only record signals, as they could run while a child is being started.
    handlers = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        while True:
            while left and len(running) < at_once and not moments and (goes_on or not failed):
                job = left.pop(0)
                if not is_done(job):
                    running.append((job, start(job, library)))
            if not running:
                return EXIT_STOPPED if moments and (failed or left) else failed
            time.sleep(POLL_S)
            for _, child in running:
                if len(moments) > 1:
                    kill(child)
                elif len(moments) > signalled:
                    child.send_signal(signal.SIGTERM)
            signalled = len(moments)
            for job, child in list(running):
                if child.poll() is None:
                    continue
                running.remove((job, child))
                # Popen gives -9 for a child that SIGKILL has ended, for which a shell gives 137.
                status = child.returncode if child.returncode >= 0 else KILLED - child.returncode
                on_end(job, status)
                failed = failed or status
    finally:
        for _, child in running:
            kill(child)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def start(job: Job, library: ctypes.CDLL | None) -> subprocess.Popen[bytes]:
    """Start a job; reject a command that cannot be started."""
    words = list(job.words)
    if TRUSTED.get():
        words.append("--trust")
    with nullcontext() if job.output is None else job.output.open("ab") as output:
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                process_group=0,
                preexec_fn=partial(end_with, os.getpid(), library),  # noqa: PLW1509  only the forking thread runs Python
            )
        except OSError as error:
            raise ConfigError(f"{job.words[0]}: cannot be started ({error.strerror}); name another command") from error


def end_with(parent: int, library: ctypes.CDLL | None) -> None:
    """Have the kernel kill this process when its parent, whose number is given, ends; exec keeps that."""
    if library is not None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the request, which then has no effect.
    if os.getppid() != parent:
        os._exit(1)


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its whole process group at once."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def is_finished(experiment: Experiment) -> bool:
    """Return whether lab.fit --resume would find nothing left to do; lab.fit rejects what cannot be read."""
    folder = RunFolder(experiment.run.path)
    try:
        before = load_experiment(folder.path / "config.yaml")
        if any(find_changes(before.to_dict(), experiment.to_dict())):
            return False
        saved = newest(folder.checkpoints, TENSORS)
        return is_run_finished(folder, saved, experiment.train.steps, probes=experiment.probe is not None)
    except LabError:
        return False
