"""Train the remaining runs of a sweep, several at once, until each has finished, failed or been stopped.

A failure does not stop the others. A run that another process has locked is waited for, and taken over where that
process leaves it unfinished. The first signal is passed on to the runs, once, as SIGTERM: they save and end with status
75. A second Ctrl-C kills them.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from filelock import FileLock

from lab.command import FAILED, STOPPED
from lab.lock import release
from lab.sweep.children import kill, last_line, lock_run, start
from lab.sweep.planning import Run
from lab.sweep.progress import Display, State, consumed_tokens

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
POLL_S = 0.2
COPY_S = 1.0  # a Ctrl-C this soon after another signal is the same one, from the terminal and a launcher


class Schedule:
    """The runs of a sweep, and the processes of those that run."""

    def __init__(self, runs: Sequence[Run], jobs: int) -> None:
        self.jobs = jobs
        self.states = [State(run, "finished" if run.is_finished() else "waiting") for run in runs]
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.locks: dict[int, FileLock] = {}
        self.asked_at: float | None = None
        self.passed_on = self.at_once = False

    def run(self, display: Display) -> int:
        """Train all unfinished runs and return the exit status."""
        with self.handlers():
            while self.is_left():
                self.pass_on()
                self.collect()
                if self.asked_at is None:
                    self.fill()
                display.update(self.states)
                time.sleep(POLL_S)
        display.clear()
        names = [state.name for state in self.states]
        if self.asked_at is not None or "failed" not in names:
            return 0 if all(name == "finished" for name in names) else STOPPED
        return FAILED

    def is_left(self) -> bool:
        """Return whether a run is running, or may still start."""
        may_start = any(state.name in ("waiting", "elsewhere") for state in self.states)
        return bool(self.children) or (may_start and self.asked_at is None)

    def fill(self) -> None:
        """Start runs while there is room, in order."""
        for state in self.states:
            if len(self.children) >= self.jobs:
                return
            if state.name in ("waiting", "elsewhere"):
                self.begin(state)

    def begin(self, state: State) -> None:
        """Start one run, unless another process runs it or has finished it."""
        held = lock_run(state.run)
        if held is None:
            state.name = "elsewhere"
            return
        if state.run.is_finished():
            state.name = "finished"
            release(held)
            return
        threads = state.run.threads(self.jobs)
        state.began = time.monotonic(), consumed_tokens(state.run)
        try:
            self.children[state.run.index] = start(state.run.words(threads), state.run.path, threads)
            self.locks[state.run.index] = held
            state.name = "running"
        except OSError as error:
            state.name, state.reason = "failed", f"cannot be started ({error})"
            release(held)

    def collect(self) -> None:
        """Record which runs have ended, and how."""
        for state in self.states:
            child = self.children.get(state.run.index)
            status = None if child is None else child.poll()
            if status is None:
                continue
            del self.children[state.run.index]
            release(self.locks.pop(state.run.index))
            if status == 0:
                state.name = "finished"
            elif status == STOPPED or self.asked_at is not None:
                state.name, state.reason = "stopped", "the same command continues"
            else:
                killed = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
                state.name, state.reason = "failed", f"{killed}: {last_line(state.run.path)}"

    def pass_on(self) -> None:
        """Pass a signal on to the runs, once; kill them at a second Ctrl-C."""
        if self.at_once:
            for child in self.children.values():
                kill(child)
        elif self.asked_at is not None and not self.passed_on:
            self.passed_on = True
            for child in self.children.values():
                child.send_signal(signal.SIGTERM)

    @contextmanager
    def handlers(self) -> Iterator[None]:
        """Record signals, on which the loop acts: a handler could run while a child is being started."""

        def note(number: int, frame: Any) -> None:
            now = time.monotonic()
            if self.asked_at is None:
                self.asked_at = now
            elif number == signal.SIGINT and now - self.asked_at > COPY_S:
                self.at_once = True

        before = {number: signal.signal(number, note) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
