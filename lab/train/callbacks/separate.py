"""Probes of saved checkpoints in processes of their own, one at a time and in order, while the run trains.

What has not been probed yet is kept in `probing/pending.json` of the run folder, so that a resumed run does it. A
process ends with that of the run; its result is a file that the run reads, records and deletes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lab.errors import CheckpointError
from lab.files import read_object, write_json
from lab.lifetime import described_end
from lab.probe.measuring import Found
from lab.train.checkpoints import folder_name
from lab.train.folder import RunFolder

MODULE = "lab.probe_saved"
PLACE = "probing"  # in the run folder
SHOWN = 500  # characters of what a process printed last


class Separate:
    """The probes of one run; `record` receives the consumed tokens of each, and what it found or why it failed."""

    def __init__(self, folder: RunFolder, record: Callable[[int, Found | str], None]) -> None:
        self.folder, self.record = folder, record
        self.place = folder.path / PLACE
        self.pending: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None

    def resume(self, consumed: int) -> list[int]:
        """Continue with what an earlier process of the run left, up to the tokens it continues at, and return it."""
        if (self.place / "pending.json").exists():
            found = read_object(self.place / "pending.json", CheckpointError, "delete it")["consumed_tokens"]
            self.pending = [tokens for tokens in found if tokens <= consumed]
        self.start()
        return self.pending

    def add(self, consumed: int) -> None:
        """Probe the checkpoint that has just been saved once those before it have been probed."""
        self.pending.append(consumed)
        self.start()

    def start(self) -> None:
        """Write what is pending, and begin with the first unless one is running."""
        if not self.pending:
            shutil.rmtree(self.place, ignore_errors=True)
            return
        self.place.mkdir(exist_ok=True)
        write_json(self.place / "pending.json", {"consumed_tokens": self.pending})
        if self.process is None:
            words = [sys.executable, "-m", MODULE, str(self.folder.path), str(self.pending[0]), str(os.getpid())]
            with (self.place / "output.txt").open("wb") as output:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )

    def poll(self) -> bool:
        """Record a probe that has ended and begin the next; return whether any is left."""
        if self.process is not None and self.process.poll() is not None:
            consumed, code = self.pending.pop(0), self.process.returncode
            self.process = None
            file = result_file(self.folder.path, consumed)
            self.record(consumed, self.outcome(file, code))
            file.unlink(missing_ok=True)
            self.start()
        return bool(self.pending)

    def outcome(self, file: Path, code: int) -> Found | str:
        """Read what a process found, or describe how it ended."""
        if not file.exists():
            printed = (self.place / "output.txt").read_text(errors="replace").strip()[-SHOWN:]
            return ": ".join([f"its process {described_end(code)}", *printed.splitlines()[-1:]])
        found = read_object(file, CheckpointError, "delete it")
        return found["failed"] if "failed" in found else Found(found["lines"], found["cases"])

    def stop(self) -> None:
        """End the process, whose probe stays pending."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def result_file(folder: Path, consumed: int) -> Path:
    """Return the file that the process of a probe writes."""
    return folder / PLACE / f"{folder_name(consumed)}.json"
