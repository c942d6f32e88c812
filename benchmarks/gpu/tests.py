"""Run the tests that need a GPU: those marked `gpu`, in the files that hold any."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Case, Options, Skipped, run

COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected)")


def run_tests() -> dict[str, Any]:
    """Run them and count.

    Raises: RuntimeError when one fails, Skipped when none ran.
    """
    files = sorted(str(path) for path in ROOT.glob("tests/**/*.py") if "mark.gpu" in path.read_text(encoding="utf-8"))
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *files]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    if done.returncode not in (0, 5):
        raise RuntimeError(last)
    counts = {kind: int(count) for count, kind in COUNTS.findall(last)}
    if not counts.get("passed"):
        raise Skipped(f"no test ran: {last}")
    return counts


def cases(options: Options) -> list[Case]:
    """List the one run."""
    return [("pytest -m gpu", run_tests)]


if __name__ == "__main__":
    run(cases)
