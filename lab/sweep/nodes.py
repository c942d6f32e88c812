"""Run a plan, a list of nodes, as child processes, several at a time, and pass signals on to them.

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
from collections.abc import Callable, Sequence
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
from lab.core.locks import is_held
from lab.core.plugins import TRUSTED
from lab.core.startup import SIGNALS
from lab.runs.checkpoints import TENSORS, newest
from lab.runs.folder import RunFolder
from lab.runs.recovery import is_run_finished


@dataclass(kw_only=True)
class Node:
    """A command, the nodes that must be finished before it, and how far it is."""

    name: str
    command: Sequence[str]
    needs: Sequence["Node"] = ()
    is_finished: Callable[[], bool] = lambda: False
    output: Path | None = None
    """File that the output is appended to; default: it is printed."""
    lock: Path | None = None
    """File that another process holds while it does the same."""
    state: str = "waiting"
    """waiting, running, finished, failed, stopped, or elsewhere in another process."""
    reason: str = ""

    def is_elsewhere(self) -> bool:
        return self.lock is not None and is_held(self.lock)

    @property
    def last_line(self) -> str:
        """The last line that was printed, which names the error of a command that failed."""
        if self.output is None:
            return "its output is above"
        tail = self.output.read_bytes()[-8192:].decode("utf-8", "replace").strip()
        return tail.splitlines()[-1].strip() if tail else "no output"


def run_nodes(nodes: Sequence[Node], jobs: int = 1, report: Callable[[Node], object] = lambda node: None) -> int:
    """Run nodes in order, `jobs` at once, each after those that it needs, but for those that are finished by then.

    `report` is called whenever a node changes its state. Return 0, the status of the first that failed, or EXIT_STOPPED
    if a signal, or another process that runs a node, has left something to do.
    """
    runner = Runner(nodes, jobs, report)
    # The handlers only record signals, as they could run while a child is being started.
    handlers = {number: signal.signal(number, runner.note) for number in SIGNALS}
    try:
        while runner.start_ready():
            time.sleep(0.1)
            runner.pass_on_signals()
            runner.collect_ended()
    finally:
        for _, child in runner.running:
            kill(child)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    states = {node.state for node in nodes}
    # Stopped comes before failed, because the same command has something left to do.
    if states & {"elsewhere", "stopped"} or (runner.moments and states != {"finished"}):
        return EXIT_STOPPED
    return runner.failed


class Runner:
    """Nodes and the processes of those that are running."""

    def __init__(self, nodes: Sequence[Node], jobs: int, report: Callable[[Node], object]) -> None:
        self.nodes, self.jobs, self.report = nodes, jobs, report
        self.running: list[tuple[Node, subprocess.Popen[bytes]]] = []
        self.moments: list[float] = []  # of the first signal, and of later ones by which the children are killed
        self.failed = self.passed_on = 0
        # Between fork and exec a child must not load a library: another thread may have held a lock at the fork.
        self.library = ctypes.CDLL(None) if sys.platform == "linux" else None

    def note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.moments or (number == signal.SIGINT and now - self.moments[0] > COPY_S):
            self.moments.append(now)

    def change(self, node: Node, state: str, reason: str = "") -> None:
        node.state, node.reason = state, reason
        self.report(node)

    def start_ready(self) -> bool:
        """Start the nodes that are ready, up to `jobs`, unless a signal has come; return whether any is running."""
        for node in self.nodes:
            is_ready = node.state == "waiting" and all(need.state == "finished" for need in node.needs)
            if not is_ready or self.moments or len(self.running) == self.jobs:
                continue
            # Asked as late as possible: another process may have run it by then.
            if node.is_finished():
                self.change(node, "finished")
            elif node.is_elsewhere():
                self.change(node, "elsewhere")
            else:
                self.change(node, "running")
                self.running.append((node, start_node(node, self.library)))
        return bool(self.running)

    def pass_on_signals(self) -> None:
        """Pass the first signal on as SIGTERM, and kill the children at a later one."""
        for _, child in self.running:
            if len(self.moments) > 1:
                kill(child)
            elif len(self.moments) > self.passed_on:
                child.send_signal(signal.SIGTERM)
        self.passed_on = len(self.moments)

    def collect_ended(self) -> None:
        """Set the state of the nodes whose commands have ended."""
        for node, child in list(self.running):
            if child.poll() is None:
                continue
            self.running.remove((node, child))
            # Popen gives -9 for a child that SIGKILL has ended, for which a shell gives 137.
            status = child.returncode if child.returncode >= 0 else 128 - child.returncode
            # If two processes start a node at the same moment, one fails, perhaps after the other has ended.
            if status == 0 or node.is_finished():
                self.change(node, "finished")
            elif status == EXIT_STOPPED:
                self.change(node, "stopped")
            elif node.is_elsewhere():
                self.change(node, "elsewhere")
            else:
                self.failed = self.failed or status
                self.change(node, "failed", f"status {status}: {node.last_line}")


def start_node(node: Node, library: ctypes.CDLL | None) -> subprocess.Popen[bytes]:
    """Start the command of a node; reject one that cannot be started."""
    arguments = list(node.command)
    if TRUSTED.get():
        arguments.append("--trust")
    if node.output is not None:
        node.output.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if node.output is None else node.output.open("ab") as stdout:
        try:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT if stdout else None,
                process_group=0,
                preexec_fn=partial(end_with, os.getpid(), library),  # noqa: PLW1509  only the forking thread runs Python
            )
        except OSError as error:
            raise ConfigError(f"{arguments[0]}: cannot be started ({error.strerror}); name another command") from error


def end_with(parent: int, library: ctypes.CDLL | None) -> None:
    """Have the kernel kill this process when its parent, whose number is given, ends; exec keeps that."""
    if library is not None:
        library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of prctl(2)
    # The parent may have ended before the request, which then has no effect.
    if os.getppid() != parent:
        os._exit(1)


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its whole process group at once."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def is_trained(experiment: Experiment) -> bool:
    """Return whether lab.fit --resume would find nothing left to do; lab.fit rejects what cannot be read."""
    folder = RunFolder(experiment.run.path)
    try:
        before = load_experiment(folder.path / "config.yaml").to_dict()
        saved = newest(folder.checkpoints, TENSORS)
        return not any(find_changes(before, experiment.to_dict())) and is_run_finished(
            folder, saved, experiment.train.steps, probes=experiment.probe is not None
        )
    except LabError:
        return False
