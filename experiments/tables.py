"""Tables of runs, as lab.runs.tables reads them, and tables of results on a page."""

import json
import lzma
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.errors import ConfigError
from lab.core.files import write_atomic
from lab.core.types import Row

TESTS = "eval/distance*.jsonl"  # of a run folder: results of eval.distance
FILES = ("config.yaml", "environment.json", "provenance.json", "probes.jsonl", "counts.npz")


def find_tables(folder: Path, names: Iterable[str]) -> list[Path]:
    """List the tables of records that exist.

    Raises: ConfigError if there are none.
    """
    tables = [folder / f"{name}.jsonl.xz" for name in names]
    tables = [table for table in tables if table.exists()]
    if not tables:
        raise ConfigError(f"--results: {folder} has no records; train the runs first, without --results")
    return tables


def read_tests(run: Path) -> Iterator[Row]:
    """Read the results of eval.distance in a run folder."""
    for path in run.glob(TESTS):
        yield from map(json.loads, path.read_text("utf-8").splitlines())


def pack(runs: Iterable[Path], table: Path) -> None:
    """Write to a table what eval.report, eval.reach and eval.compare read of run folders."""
    text = ""
    for run in sorted(runs):
        for record in read_files(run):
            text += json.dumps(record, separators=(",", ":")) + "\n"
    write_atomic(table, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read_files(run: Path) -> Iterator[dict[str, Any]]:
    """Go through a run folder's files, results in the order in which they were written, without single tests."""
    files = [run / name for name in FILES if (run / name).exists()] + sorted(run.glob("counts/*.npz"))
    results = [path for path in run.glob("eval/**/*.jsonl") if not path.name.startswith("tests-")]
    # eval.report prefers later results, so that their order is kept.
    files += sorted(results, key=lambda path: (path.stat().st_mtime, path.name))
    for path in files:
        record = {"run": run.name, "file": path.relative_to(run).as_posix()}
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                yield {**record, "arrays": needed_arrays(arrays)}
        elif path.suffix == ".jsonl":
            for line in path.read_text("utf-8").splitlines():
                yield {**record, "row": json.loads(line)}
        else:
            yield {**record, "text": path.read_text("utf-8")}


def needed_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a counts.npz that commands read of tables, half of its size: without targets by context."""
    needed = {name: arrays[name].tolist() for name in arrays if name not in ("supervised", "g_unweighted")}
    # Of the rest of this array no command reads anything.
    if "supervised_f" in needed:
        needed["supervised_f"] = needed["supervised_f"][:1]  # the number of targets
    return needed


def write_reach(reach: float | None, last: float) -> str:
    """Write a reach, with + at the last distance tested and - if none is shown.

    Example:
        >>> write_reach(135.4, 179), write_reach(179.0, 179), write_reach(None, 179)
        ('135', '179+', '-')
    """
    if reach is None or math.isnan(reach):
        return "-"
    return f"{reach:.0f}+" if reach >= last else f"{reach:.0f}"


def write_tables(text: str, page: Path | None, heading: str) -> None:
    """Print tables, and write them into the first fenced block below a heading of a page, if the page exists."""
    print(text)
    if page is not None and page.exists():
        above, heading, below = page.read_text("utf-8").partition(f"\n{heading}\n")
        before, _, after = below.split("```", 2)
        page.write_text(f"{above}{heading}{before}```\n{text}\n```{after}", "utf-8")
