"""Runs of `python -m lab.fit` as processes: to the end, or killed at a checkpoint and resumed.

What a run prints goes to a log of its own, whose last line is the reason where it fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Options

POLL_S = 0.005


@dataclass(frozen=True)
class Fit:
    """One run of a config, whose files lie in the stages' folder."""

    options: Options
    config: Path
    name: str
    settings: Sequence[str]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.options.work / "runs" / self.name

    @property
    def log(self) -> Path:
        """What the run prints."""
        return self.options.out / "logs" / f"fit_{self.name}.log"

    def metrics(self) -> list[dict[str, Any]]:
        """Read the whole lines of the run's metrics, also while it writes them."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    @contextmanager
    def started(self, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start the command; it is killed where the block leaves it running."""
        folders = [f"--run.folder={self.folder.parent}", f"--data.folder={self.options.work / 'shards'}"]
        words = [sys.executable, "-m", "lab.fit", str(self.config), f"--run.name={self.name}", *folders]
        with (
            self.log.open("ab") as log,
            subprocess.Popen([*words, *self.settings, *flags], cwd=ROOT, stdout=log, stderr=log) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def ended(self, process: subprocess.Popen[bytes]) -> RuntimeError:
        """Describe an end that was not expected."""
        return RuntimeError(f"lab.fit ended with status {process.returncode}: {last_line(self.log)}")

    def run(self, *flags: str) -> float:
        """Run the command to its end and return the seconds.

        Raises: RuntimeError for any status but 0.
        """
        start = time.monotonic()
        with self.started(*flags) as process:
            if process.wait():
                raise self.ended(process)
        return time.monotonic() - start

    def wait_for(self, process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> float:
        """Wait until something has happened and return the seconds it took.

        Raises: RuntimeError if the process ends before.
        """
        start = time.monotonic()
        while not happened():
            if process.poll() is not None:
                raise self.ended(process)
            time.sleep(POLL_S)
        return time.monotonic() - start

    def kill_at_checkpoint(self) -> dict[str, Any]:
        """Start the run, kill it with SIGKILL as soon as a checkpoint has its name, and time the way there."""
        folder = self.folder / "checkpoints"
        with self.started() as process:
            start_s = self.wait_for(process, lambda: folder.is_dir() and any(folder.iterdir()))
            save_s = self.wait_for(process, lambda: any(folder.glob("tokens-*")))
        checkpoint = min(folder.glob("tokens-*"))
        return {
            "save_begins_s": start_s,
            "save_s": save_s,
            "checkpoint_bytes": sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()),
            "killed_at_step": self.metrics()[-1]["step"],
        }

    def resume_until_step(self, step: int) -> float:
        """Resume the run, kill it once it has done a step, and return the seconds to that step."""
        with self.started("--resume") as process:
            return self.wait_for(process, lambda: any(line["step"] >= step for line in self.metrics()))


def last_line(path: Path) -> str:
    """Read the last line of a log."""
    lines = path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"
