"""Runs in one compressed table, so that many of them can be kept in a repository.

A table is a .jsonl.xz file. Each line is one JSON object: the run, the file in its folder, and a row of that file, its
text, or its arrays. Commands that read run folders take such a table as well: `unpacked` writes the folders to a
temporary place, in the order of the runs' names.

    {"run": "cpu_demo-9c7344f7", "file": "probes.jsonl", "row": {"consumed_tokens": 500373, ...}}
    {"run": "cpu_demo-9c7344f7", "file": "counts.npz", "arrays": {"f": [3001, ...], "tokens": 2998141}}
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import DataError
from lab.files import write_atomic

ENDING = ".jsonl.xz"
FILES = ("config.yaml", "environment.json", "probes.jsonl", "counts.npz")
CASE_FIELDS = ("length", "depths", "found_each")  # of which the heat map is made
Row = dict[str, Any]


def pack(runs: Iterable[Path], table: Path) -> None:
    """Write to a table what eval.report, eval.reach, eval.plan and eval.compare read of run folders."""
    records = (record for run in sorted(runs) for record in records_of(run))
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    write_atomic(table, lzma.compress(text.encode(), preset=9))


def records_of(run: Path) -> Iterator[Row]:
    """Go through a run folder's files, results in the order in which they were written.

    Of single tests only the last probe's are kept, and of those only where the numbers lay and which were found.
    """
    results = [path for path in run.glob("eval/**/*.jsonl") if not path.name.startswith("tests-")]
    files = [run / name for name in FILES if (run / name).exists()] + sorted(run.glob("counts/*.npz"))
    files += sorted(results, key=lambda path: (path.stat().st_mtime, path.name))
    files += sorted(run.glob("cases/*.jsonl"))[-1:]
    for path in files:
        record = {"run": run.name, "file": path.relative_to(run).as_posix()}
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                yield {**record, "arrays": {name: arrays[name].tolist() for name in arrays.files}}
        elif path.suffix == ".jsonl":
            rows: Iterable[Row] = map(json.loads, path.read_text("utf-8").splitlines())
            if path.parent.name == "cases":
                rows = ({name: row[name] for name in CASE_FIELDS} for row in rows if "found_each" in row)
            yield from ({**record, "row": row} for row in rows)
        else:
            yield {**record, "text": path.read_text("utf-8")}


def unpack(table: Path, folder: Path) -> list[Path]:
    """Write the runs of a table below a folder, and return theirs.

    Raises: DataError for a broken table.
    """
    files: dict[Path, list[Row]] = {}
    try:
        with lzma.open(table, "rt", encoding="utf-8") as lines:
            for record in map(json.loads, lines):
                files.setdefault(folder / record["run"] / record["file"], []).append(record)
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{table}: not a table of runs ({error}); restore it") from error
    for path, records in files.items():  # in the order of the table, which the times of the files keep
        path.parent.mkdir(parents=True, exist_ok=True)
        first = records[0]
        if "arrays" in first:
            arrays: Any = {name: np.array(values) for name, values in first["arrays"].items()}
            np.savez(path, **arrays)
        elif "row" in first:
            path.write_text("".join(json.dumps(record["row"]) + "\n" for record in records), "utf-8")
        else:
            path.write_text(first["text"], "utf-8")
    return sorted({folder / record["run"] for records in files.values() for record in records})


@contextmanager
def unpacked(places: Sequence[Path]) -> Iterator[list[Path]]:
    """Replace tables of runs by folders that last until the block ends; other places stay as they are.

    Raises: DataError for a broken table.
    """
    tables = [place for place in places if place.name.endswith(ENDING)]
    with tempfile.TemporaryDirectory() as folder:
        runs = [run for number, table in enumerate(tables) for run in unpack(table, Path(folder) / str(number))]
        others = [place for place in places if place not in tables]
        yield [*others, *sorted(runs, key=lambda run: run.name)]
