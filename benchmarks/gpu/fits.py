"""Commands as processes, and runs of `python -m lab.fit`: to the end, or killed at a checkpoint and resumed.

What a command prints goes to a log of its own, whose last line is the reason where it fails.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import ROOT, Settings
from benchmarks.gpu.stage import Options, Skipped
from benchmarks.on_gpu import last_line
from lab.train.checkpoints import TEMPORARY

POLL_S = 0.002


@dataclass(frozen=True)
class Fit:
    """One run of a config, whose files lie in the stages' folder."""

    options: Options
    config: Path
    name: str
    settings: Settings

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

    def words(self, *flags: str) -> list[str]:
        """Write the command."""
        places = {"run.name": self.name, "run.folder": self.folder.parent, "data.folder": self.options.work / "shards"}
        settings = [f"--{key}={'null' if value is None else value}" for key, value in (self.settings | places).items()]
        return ["lab.fit", str(self.config), *settings, *flags]

    def clear(self) -> None:
        """Remove what an earlier measurement has left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)

    def run(self, *flags: str) -> float:
        """Run the command to its end and return the seconds.

        Raises: RuntimeError for any status but 0.
        """
        return call(self.words(*flags), self.log)

    def wait_for(self, process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> float:
        """Wait until something has happened and return the seconds it took.

        Raises: RuntimeError if the process ends before.
        """
        start = time.monotonic()
        while not happened():
            if process.poll() is not None:
                raise RuntimeError(f"lab.fit ended with status {process.returncode}: {last_line(self.log)}")
            time.sleep(POLL_S)
        return time.monotonic() - start

    def kill_at_checkpoint(self) -> dict[str, Any]:
        """Start the run, kill it with SIGKILL as soon as a checkpoint has its name, and time start and save apart."""
        folder = self.folder / "checkpoints"
        named = lambda: any(folder.glob("tokens-*"))  # noqa: E731
        with started(self.words(), self.log) as process:
            start_s = self.wait_for(process, lambda: (folder / TEMPORARY).is_dir() or named())
            save_s = self.wait_for(process, named)
        checkpoint = min(folder.glob("tokens-*"))
        return {
            "save_begins_s": start_s,
            "save_s": save_s,
            "checkpoint_bytes": sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()),
            "killed_at_step": self.metrics()[-1]["step"],
        }

    def find_checkpoint(self) -> None:
        """Raise Skipped where there is nothing to resume from."""
        if not any((self.folder / "checkpoints").glob("tokens-*")):
            raise Skipped("no checkpoint to resume from; run the stage from its beginning")

    def resume_until_step(self, step: int) -> float:
        """Resume the run, kill it once it has done a step, and return the seconds to that step."""
        with started(self.words("--resume"), self.log) as process:
            return self.wait_for(process, lambda: any(line["step"] >= step for line in self.metrics()))


@contextmanager
def started(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a module with arguments; it is killed where the block leaves it running."""
    command = [sys.executable, "-m", *words]
    with log.open("ab") as file, subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.kill()


def call(words: Sequence[str], log: Path) -> float:
    """Run a module to its end and return the seconds.

    Raises: RuntimeError for any status but 0.
    """
    start = time.monotonic()
    with started(words, log) as process:
        if process.wait():
            raise RuntimeError(f"{words[0]} ended with status {process.returncode}: {last_line(log)}")
    return time.monotonic() - start
