"""The GPU measurements of a run's step and its memory, the tests of kernels, and the peers: one command of 8 minutes.

    python -m benchmarks.on_gpu --out DIR [--only STAGE,...] [--toy]

Every stage is a process of its own with a time limit; the limits add up to less than 8 minutes, and the first stage
fills the compiler's cache. DIR/results.jsonl gets a line (see benchmarks.record) for every case as soon as it is
measured, with the clock and power of the GPU meanwhile; DIR/logs/ what the stages print. A stage that fails, or is
killed at its limit with all its processes, is a line too, and the next one starts. Corpora are synthetic and weights
random. Without a GPU, or with --toy, the same stages run at toy size in about a minute.
`python -m benchmarks.results DIR/results.jsonl` writes the tables.

Exit status: 0 if nothing failed; 1 if a stage failed or ran out of time; 2 for an invalid command line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import cuda

from benchmarks import record
from benchmarks.gpu.sizes import ROOT


@dataclass(frozen=True)
class Stage:
    """A module that measures, and the seconds it may take."""

    name: str
    module: str
    limit_s: float


STAGES = (
    Stage("compile", "benchmarks.gpu.compiling", 80),  # the machine may have compiled nothing
    Stage("gpu tests", "benchmarks.gpu.tests", 130),
    Stage("steps", "benchmarks.gpu.steps", 180),
    Stage("peers", "benchmarks.gpu.peers", 60),
)
TOY_PATIENCE = 4  # a CPU may be busy with other work


def run_stages(stages: Sequence[Stage], out: Path, toy: bool) -> bool:
    """Run the stages one after the other and return whether none failed; the files they share are removed."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    log, start = record.Log("on_gpu", out / "results.jsonl"), time.monotonic()
    try:
        outcomes = [outcome for stage in stages for outcome in run_stage(stage, out, toy, log)]
    finally:
        shutil.rmtree(out / "work", ignore_errors=True)
    failed = sum(outcome.status in ("failed", "timed out") for outcome in outcomes)
    report(f"{len(outcomes)} records, {failed} failed, {time.monotonic() - start:.0f} s: {out / 'results.jsonl'}")
    return not failed


def run_stage(stage: Stage, out: Path, toy: bool, log: record.Log) -> list[record.Record]:
    """Run one stage in a process group of its own, which does not outlive it, and record what it reports."""
    start, path = time.monotonic(), out / "logs" / f"{stage.name.replace(' ', '_')}.log"
    limit_s = stage.limit_s * (TOY_PATIENCE if toy else 1)
    report(f"{stage.name}: starts, at most {limit_s:g} s")
    words = [sys.executable, "-m", "benchmarks.gpu", stage.module, "--out", str(out), *(["--toy"] if toy else [])]
    threads = {"OMP_WAIT_POLICY": "PASSIVE", **({"OMP_NUM_THREADS": "1"} if toy else {})}  # waiting ones must not spin
    found = []
    with path.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **threads},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            kill_group(process)

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            assert process.stdout is not None, "opened as a pipe above"
            for line in process.stdout:
                if line.endswith("\n"):  # a kill may cut the last one short
                    found.append(log_case(log, stage, line))
            process.wait()
        finally:
            timer.cancel()
            kill_group(process)
            process.wait()
    if timed_out.is_set():
        found.append(fail(log, stage, start, "timed out", f"killed at its limit of {limit_s:g} s"))
    elif process.returncode or not found:
        reason = f"ended with status {process.returncode}: {last_line(path)}"
        found.append(fail(log, stage, start, "failed", reason))
    return found


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a stage and all that it started; none may be left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def log_case(log: record.Log, stage: Stage, line: str) -> record.Record:
    """Record a stage's report of one case."""
    case: dict[str, Any] = json.loads(line)
    name = case.pop("case")
    written = log.add(stage.name, name, **case)
    numbers = [f"{key} {value:,.4g}" for key, value in written.figures.items() if isinstance(value, int | float)]
    remark = written.reason or ", ".join(numbers[:6])
    report(f"{stage.name}: {name}: {written.status}, {written.seconds:.1f} s: {remark}")
    return written


def fail(log: record.Log, stage: Stage, start: float, status: record.Status, reason: str) -> record.Record:
    """Record that a stage did not reach its end."""
    seconds = time.monotonic() - start
    report(f"{stage.name}: {status}, {seconds:.1f} s: {reason}")
    return log.add(stage.name, status=status, reason=reason, seconds=seconds)


def report(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


def last_line(path: Path) -> str:
    """Read the last line of a log."""
    lines = path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    by_name = {stage.name: stage for stage in STAGES}
    try:
        stages = [by_name[name] for name in options.only.split(",")] if options.only else STAGES
    except KeyError as error:
        parser.error(f"--only={options.only}: no stage {error}; use {', '.join(by_name)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the stage is killed too
    raise SystemExit(0 if run_stages(stages, options.out.resolve(), options.toy or not cuda.is_available()) else 1)


if __name__ == "__main__":
    main()
