"""Run the tests that need a GPU, all that `pytest -m gpu` selects; every result is in gpu_tests.txt as it comes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Case, Options, Skipped
from lab.model.attention.kernels import WHOLE

COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")
SELECTED = re.compile(r"collected .*?(\d+) (?:selected|items?)$", re.MULTILINE)
UNREAD = re.compile(r"_ ERROR collecting (\S+) _")
RESULT = re.compile(r"^(\S+::\S+) (PASSED|FAILED|SKIPPED|ERROR)\b", re.MULTILINE)


def run_tests(options: Options, *places: str) -> dict[str, Any]:
    """Run them and count; files that cannot be read for want of a package are named.

    Raises: RuntimeError when one fails, Skipped when none passed.
    """
    path = options.out / "gpu_tests.txt"
    words = ["-m", "gpu", "-vv", "-p", "no:cacheprovider", "--continue-on-collection-errors", *places]
    with path.open("w", encoding="utf-8") as file:
        done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, stdout=file, stderr=file, check=False)
    text = path.read_text(encoding="utf-8", errors="replace")
    last = text.strip().splitlines()[-1] if text.strip() else "no output"
    counts = {kind: int(count) for count, kind in COUNTS.findall(last)}
    unread = UNREAD.findall(text)
    if counts.get("failed") or done.returncode not in (0, 1) or counts.get("error", 0) > len(unread):
        raise RuntimeError(last)
    if not counts.get("passed"):
        raise Skipped(f"no test ran: {last}")
    return {**counts, **selection(text), "not_read": sorted(set(unread))}


def selection(text: str) -> dict[str, Any]:
    """Count the tests that were selected, and the results of each attention backend."""
    results = RESULT.findall(text)
    by_backend = {
        name: dict(Counter(result.lower() for test, result in results if re.search(rf"[\[-]{name}[_\]-]", test)))
        for name in WHOLE
    }
    return {"selected": max(map(int, SELECTED.findall(text)), default=0), "backends": by_backend}


def cases(options: Options) -> list[Case]:
    """List the one run."""
    return [("pytest -m gpu", lambda: run_tests(options))]
