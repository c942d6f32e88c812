"""The progress of a sweep's runs, read from their folders, as a redrawn table or as lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lab.command import show
from lab.errors import LabError
from lab.sweep.planning import Run
from lab.train.folder import RunFolder

HEAD = ("run", "settings", "state", "progress", "tokens", "effective length", "reach", "left", "")
TAIL_BYTES = 8192
REDRAWN_EVERY_S, LINES_EVERY_S = 0.5, 60.0
SHOWN_FIRST = ("running", "failed", "stopped", "elsewhere", "waiting", "finished")


@dataclass
class State:
    """The state of a run."""

    run: Run
    name: str = "waiting"
    reason: str = ""
    began: tuple[float, int] | None = None
    """When this process started it, by the monotonic clock, and the tokens it had consumed."""
    described: tuple[str, ...] = ()

    def row(self) -> tuple[str, ...]:
        """Describe the run, from its folder where it is running or has changed its state."""
        if self.name != "running" and self.described[2:3] == (self.name,):
            return self.described
        total, consumed, probe = self.run.experiment.train.tokens, 0, {}
        with suppress(LabError, ValueError, TypeError, KeyError):  # a broken record is for lab.fit to refuse
            consumed = consumed_tokens(self.run)
            probe = max(RunFolder(self.run.path).probes(), key=lambda record: record["consumed_tokens"], default={})
        self.described = (
            self.run.path.name,
            " ".join(f"{key}={value}" for key, value in self.run.swept.items()),
            self.name,
            f"{min(1.0, consumed / total):.0%}",
            f"{consumed:,}",
            measured(probe, "effective_length", "first_length"),
            measured(probe, "reach", "first_distance"),
            self.left(consumed, total),
            self.reason,
        )
        return self.described

    def left(self, consumed: int, total: int) -> str:
        """Estimate the time that a run still takes, by its speed since it was started."""
        if self.name != "running" or self.began is None or consumed <= self.began[1]:
            return "-"
        speed = (consumed - self.began[1]) / (time.monotonic() - self.began[0])
        return f"{max(0, total - consumed) / speed / 60:.0f} min"


def consumed_tokens(run: Run) -> int:
    """Read how many tokens a run has consumed, from the last whole line of its metrics."""
    path = run.path / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["consumed_tokens"]) if lines else 0


def measured(probe: dict[str, Any], key: str, first: str) -> str:
    """Format a measure of a probe; one below the first length or distance tested is null in the record."""
    if key not in probe:
        return "-"
    if probe[key] is None:
        return f"<{probe[first]}" if first in probe else "-"
    return f"{probe[key]:,.0f}"


def table(states: Sequence[State], height: int | None = None) -> list[str]:
    """Format the runs; if the height is too small, finished and waiting ones are left out first."""
    shown = list(states)
    if height is not None and len(shown) > height - 2:
        shown = sorted(states, key=lambda state: SHOWN_FIRST.index(state.name))[: max(0, height - 2)]
        shown.sort(key=lambda state: state.run.index)
    rows = [HEAD, *(state.row() for state in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*aligned, counted(states)]


def counted(states: Sequence[State]) -> str:
    """Count the runs by state."""
    counts = Counter(state.name for state in states)
    return f"{len(states)} runs: " + ", ".join(f"{counts[name]} {name}" for name in SHOWN_FIRST if counts[name])


class Display:
    """Redraws the table in a terminal; elsewhere writes a line for each change, and periodically for each run."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.drawn, self.written_at = 0, 0.0
        self.names: dict[int, str] = {}

    def update(self, states: Sequence[State]) -> None:
        """Show the current states."""
        if self.live and time.monotonic() - self.written_at < REDRAWN_EVERY_S:
            return
        if self.live:
            self.written_at = time.monotonic()
            width, height = os.get_terminal_size(sys.stderr.fileno())
            self.clear()
            lines = [line[: width - 1] for line in table(states, height - 1)]
            show("\n".join(lines), error=True)
            self.drawn = len(lines)
            return
        due = time.monotonic() - self.written_at > LINES_EVERY_S
        for state in states:
            if self.names.get(state.run.index, "waiting") != state.name or (due and state.name == "running"):
                show("  ".join(state.row()).rstrip(), error=True)
                self.names[state.run.index] = state.name
        self.written_at = time.monotonic() if due else self.written_at

    def clear(self) -> None:
        """Remove the table that was drawn last."""
        if self.drawn:
            show(f"\x1b[{self.drawn}A\x1b[J", error=True, end="")
            self.drawn = 0
