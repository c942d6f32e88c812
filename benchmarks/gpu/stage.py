"""What a stage is: a process that measures its cases one after the other and reports each as soon as it is done."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import GPU, TOY, Size
from lab.errors import LabError

QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,clocks.sm,power.draw", "--format=csv,noheader,nounits")
SAMPLE_S = 1.0
BUSY = 50  # percent of the time since the sample before in which a kernel ran
Case = tuple[str, Callable[[], dict[str, Any]]]


@dataclass(frozen=True)
class Options:
    """Where a stage may write, and how large its subjects are."""

    out: Path
    size: Size

    @property
    def work(self) -> Path:
        """Folder of shards, runs and checkpoints, shared by the stages and removed after them."""
        return self.out / "work"


class Skipped(Exception):
    """What a case would measure cannot be measured here; the message is the reason."""


def main() -> None:
    """Measure every case of a module and write a line of JSON for each; all other output goes to stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    cases: Callable[[Options], Iterable[Case]] = import_module(arguments.module).cases
    for name, measure in cases(Options(arguments.out.resolve(), TOY if arguments.toy else GPU)):
        start = time.monotonic()
        with sampled() as state:
            outcome = outcome_of(measure)
        if outcome["status"] == "ok":
            outcome["figures"] |= state
        reports.write(json.dumps({"case": name, "seconds": time.monotonic() - start, **outcome}) + "\n")
        reports.flush()


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """Sample the first GPU's clock and power while the body runs; medians while it was busy follow, if there is one."""
    state: dict[str, float] = {}
    rows: list[list[float]] = []
    done = threading.Event()
    thread = threading.Thread(target=sample, args=(rows, done))
    thread.start()
    try:
        yield state
    finally:
        done.set()
        thread.join()
    if rows:
        busy = [row for row in rows if row[0] >= BUSY] or rows
        _, state["sm_clock_mhz"], state["power_w"] = map(statistics.median, zip(*busy, strict=True))


def sample(rows: list[list[float]], done: threading.Event) -> None:
    """Add a row of nvidia-smi's numbers every SAMPLE_S until all is done, or nothing where it does not tell them."""
    while True:
        try:
            text = subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout
            rows.append([float(word) for word in text.splitlines()[0].split(",")])
        except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
            return
        if done.wait(SAMPLE_S):
            return


def outcome_of(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure one case; an error becomes its outcome and does not stop the next case."""
    try:
        return {"status": "ok", "figures": measure()}
    except (Skipped, LabError) as error:  # what this machine lacks
        return {"status": "skipped", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"status": "failed", "reason": f"{type(error).__name__}: {str(error).strip() or 'no message'}"[:1000]}
