"""Runs of `python -m lab.fit` as processes: to the end, or killed at a checkpoint and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Options

POLL_S = 0.005


def words_of(options: Options, config: Path, name: str, settings: Sequence[str]) -> list[str]:
    """Write the command of a run whose files lie in the stages' folder."""
    folders = [f"--run.folder={options.work / 'runs'}", f"--data.folder={options.work / 'shards'}"]
    return [sys.executable, "-m", "lab.fit", str(config), f"--run.name={name}", *folders, *settings]


def fit(words: Sequence[str]) -> str:
    """Run a command to its end and return what it printed.

    Raises: RuntimeError for any status but 0.
    """
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        raise RuntimeError(f"lab.fit ended with status {done.returncode}")
    return done.stdout


def metrics(run: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a run's metrics, also while it writes them."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> float:
    """Wait until something has happened and return the seconds it took.

    Raises: RuntimeError if the process ends before.
    """
    start = time.monotonic()
    while not happened():
        if process.poll() is not None:
            raise RuntimeError(f"lab.fit ended with status {process.returncode} before it was killed")
        time.sleep(POLL_S)
    return time.monotonic() - start


def kill_at_checkpoint(words: Sequence[str], run: Path) -> dict[str, Any]:
    """Start a run, kill it with SIGKILL as soon as its first checkpoint has its name, and time the way there."""
    folder = run / "checkpoints"
    with subprocess.Popen(words, cwd=ROOT, stdout=sys.stderr, text=True) as process:
        try:
            steps_s = wait_for(process, lambda: folder.is_dir() and any(folder.iterdir()))
            save_s = wait_for(process, lambda: any(folder.glob("tokens-*")))
        finally:
            process.kill()
    [checkpoint] = sorted(folder.glob("tokens-*"))[:1]
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    return {
        "save_starts_after_s": steps_s,
        "save_s": save_s,
        "checkpoint_bytes": size,
        "killed_after_steps": metrics(run)[-1]["step"],
    }


def resume_until_step(words: Sequence[str], run: Path, step: int) -> float:
    """Resume a killed run, kill it again once it has done a further step, and return the seconds to that step."""
    with subprocess.Popen([*words, "--resume"], cwd=ROOT, stdout=sys.stderr, text=True) as process:
        try:
            return wait_for(process, lambda: any(line["step"] >= step for line in metrics(run)))
        finally:
            process.kill()
