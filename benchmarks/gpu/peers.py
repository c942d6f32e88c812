"""Training and generation beside the peers that are installed, by `benchmarks.train` and `benchmarks.generation`."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks import record
from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Case, Options
from benchmarks.peers import found


def measure(options: Options, name: str, benchmark: str, *words: str) -> dict[str, Any]:
    """Run a command and return the figures of its records by case.

    Raises: Skipped without the peer; CalledProcessError.
    """
    found(name.rpartition(" ")[2])
    path = options.work / f"{name.replace(' ', '_')}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *words, "--json", str(path)]
    subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=True)
    return {row.case: row.figures or row.reason for row in record.read(path)}


def cases(options: Options) -> list[Case]:
    """List the commands."""
    return [(name, partial(measure, options, name, *words.split())) for name, words in options.size.peers.items()]
