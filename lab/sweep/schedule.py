"""Train the unfinished runs of a sweep, several at once, until each has finished, failed or been stopped.

A failure does not stop the others. While a run trains, this process holds `.sweep.lock` there. A run that another
process trains is waited for, and taken over where that process leaves it unfinished. What a run prints is appended to
sweep.log in its folder.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lab.command import FAILED, STOPPED, show
from lab.data.preparation import is_prepared, prepare
from lab.errors import InUse, LabError
from lab.files import LOCK_NAME, acquire, is_held, release
from lab.jobs import Children, Job
from lab.sweep.planning import Run, cores
from lab.train.folder import RunFolder

LOG, LOCK = "sweep.log", ".sweep.lock"
POLL_S, LINES_EVERY_S = 0.2, 60.0
TAIL_BYTES = 8192
HEAD = ("run", "settings", "state", "progress", "tokens", "effective length", "reach", "left", "")
ORDER = ("running", "failed", "stopped", "elsewhere", "waiting", "finished")


@dataclass
class State:
    """The state of a run."""

    run: Run
    name: str = "waiting"
    reason: str = ""
    began: tuple[float, int] | None = None
    """When this process started it, by the monotonic clock, and the tokens it had consumed."""
    shown: str = "waiting"

    def row(self) -> tuple[str, ...]:
        """Describe the run, its progress as its folder records it."""
        total, consumed, probe = self.run.experiment.train.tokens, 0, {}
        with suppress(LabError, ValueError, TypeError, KeyError):  # a broken record is for lab.fit to refuse
            consumed = consumed_tokens(self.run.path)
            probe = max(RunFolder(self.run.path).probes(), key=lambda record: record["consumed_tokens"], default={})
        left = "-"
        if self.name == "running" and self.began is not None and consumed > self.began[1]:
            speed = (consumed - self.began[1]) / (time.monotonic() - self.began[0])
            left = f"{max(0, total - consumed) / speed / 60:.0f} min"
        measured = []
        for key, first in (("effective_length", "first_length"), ("reach", "first_distance")):
            below = f"<{probe[first]}" if first in probe else "-"  # null in the record
            measured.append(f"{probe[key]:,.0f}" if probe.get(key) is not None else below)
        settings = " ".join(f"{key}={value}" for key, value in self.run.swept.items())
        done = f"{min(1.0, consumed / total):.0%}"
        return self.run.path.name, settings, self.name, done, f"{consumed:,}", *measured, left, self.reason


def train(runs: Sequence[Run], jobs: int) -> list[State]:
    """Train all unfinished runs and return the state of each; a line is printed for each change.

    Corpora that the lab generates are prepared first.

    Raises: LabError.
    """
    states = states_of(runs)
    for state in states:
        data = state.run.experiment.data
        if state.name != "finished" and data.embedded and not is_prepared(data):
            prepare(data, workers=cores())
    locks: dict[str, FileLock] = {}
    written_at = time.monotonic()
    with Children() as children:
        while children.running or (waiting(states) and not children.stopping):
            for name, status in children.ended().items():
                (state,) = (one for one in states if str(one.run.index) == name)
                end(state, status, children.stopping)
                release(locks.pop(name))
            for state in waiting(states):
                if len(children.running) < jobs and not children.stopping:
                    begin(state, children, locks, jobs)
            due = time.monotonic() - written_at > LINES_EVERY_S
            written_at = time.monotonic() if due else written_at
            for state in states:
                if state.shown != state.name or (due and state.name == "running"):
                    show("  ".join(state.row()).rstrip(), error=True)
                    state.shown = state.name
            time.sleep(POLL_S)
    return states


def states_of(runs: Sequence[Run]) -> list[State]:
    """Return the states of runs before any is started."""
    return [State(run, "finished" if run.is_finished() else "waiting") for run in runs]


def waiting(states: Sequence[State]) -> list[State]:
    """List the runs that may still start."""
    return [state for state in states if state.name in ("waiting", "elsewhere")]


def begin(state: State, children: Children, locks: dict[str, FileLock], jobs: int) -> None:
    """Start one run, unless another process trains it or has finished it."""
    run = state.run
    try:
        lock = acquire(run.path / LOCK)
    except InUse:
        state.name = "elsewhere"
        return
    if is_held(run.path / LOCK_NAME) or run.is_finished():
        state.name = "finished" if run.is_finished() else "elsewhere"
        release(lock)
        return
    threads = run.threads(jobs)
    state.began = time.monotonic(), consumed_tokens(run.path)
    variables = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
    try:
        children.start(Job(str(run.index), run.words(threads), run.path / LOG, variables))
    except OSError as error:
        state.name, state.reason = "failed", f"cannot be started ({error})"
        release(lock)
        return
    state.name = "running"
    locks[str(run.index)] = lock


def end(state: State, status: int, stopping: bool) -> None:
    """Record how a run ended."""
    if status == 0:
        state.name = "finished"
    elif status == STOPPED or stopping:
        state.name, state.reason = "stopped", "the same command continues"
    else:
        state.name, state.reason = "failed", f"status {status}: {last_line(state.run.path)}"


def exit_status(states: Sequence[State]) -> int:
    """Return the exit status of a sweep: 0 if all runs are finished, FAILED after a failure, else STOPPED."""
    names = {state.name for state in states}
    if names <= {"finished"}:
        return 0
    return STOPPED if names & {"stopped", "waiting", "elsewhere"} else FAILED


def consumed_tokens(folder: Path) -> int:
    """Read how many tokens a run has consumed, from the last whole line of its metrics."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["consumed_tokens"]) if lines else 0


def last_line(folder: Path) -> str:
    """Return the last line that a run printed, which names its error where it failed."""
    path = folder / LOG
    end = path.read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace") if path.exists() else ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", end) if line.strip()]
    return lines[-1] if lines else "no output"


def table(states: Sequence[State]) -> list[str]:
    """Format the runs, and count them by state."""
    rows = [HEAD, *(state.row() for state in states)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    counts = Counter(state.name for state in states)
    counted = ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])
    return [*lines, f"{len(states)} runs: {counted}"]
