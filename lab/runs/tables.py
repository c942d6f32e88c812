"""Runs in one compressed table, which commands and lab.frame read as run folders.

A table of runs is a .jsonl.xz file, so that many runs can be kept in a repository. Each line is one JSON object: the
run, the file in its folder, and a row of that file, its text, or its arrays. Commands that read run folders take such a
table as well: `unpacked` writes the folders to a temporary place, in the order of the runs' names.

    {"run": "cpu_demo-9c7344f7", "file": "probes.jsonl", "row": {"consumed_tokens": 500373, ...}}
    {"run": "cpu_demo-9c7344f7", "file": "counts.npz", "arrays": {"f": [3001, ...], "tokens": 2998141}}
"""

import json
import lzma
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.errors import DataError, abbreviate, first_line, is_plain_name

ENDING = ".jsonl.xz"
LONGEST_LINE, MOST_BYTES = 2**24, 2**28  # of a table as text; the largest of experiments/ has 4 MB


def unpack(table: Path, folder: Path) -> list[Path]:
    """Write the runs of a table below a new folder, and return theirs.

    Raises: DataError for a broken table, and for one that is larger than MOST_BYTES.
    """
    folder.mkdir()
    number = size = 0
    try:
        with lzma.open(table) as lines:
            # A line that never ends, or a small file that unpacks to terabytes, must not fill the memory or the disk.
            while line := lines.readline(LONGEST_LINE + 1):
                size += len(line)
                if len(line) > LONGEST_LINE or size > MOST_BYTES:
                    raise ValueError(f"longer than {LONGEST_LINE:,} bytes, or the table than {MOST_BYTES:,}")
                write_record(folder, json.loads(line))  # in the table's order, which the times of the files keep
                number += 1
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"line {number + 1}: {getattr(error, 'strerror', None) or first_line(error)}"
        raise DataError(f"{table}: not a table of runs ({reason}); restore it") from error
    return sorted(folder.iterdir())


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write one line of a table into its run's folder; only rows are added to a file that exists.

    Raises: ValueError for a path that leaves the run's folder; OSError for a text or repeated arrays.
    """
    names = [record["run"], *record["file"].split("/")]
    for name in names:
        if not is_plain_name(name):
            raise ValueError(f"{abbreviate(name)} is no name of a run or its file")
    path = folder.joinpath(*names)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "row" in record and path.suffix == ".jsonl":
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record["row"]) + "\n")
    elif "arrays" in record:
        with path.open("xb") as binary:
            np.savez(binary, **record["arrays"])
    else:
        with path.open("x", encoding="utf-8") as file:
            file.write(record["text"])


@contextmanager
def unpacked(places: Sequence[Path]) -> Iterator[list[Path]]:
    """Replace tables of runs by folders that last until the block ends; other places stay as they are.

    Raises: DataError for a broken table.
    """
    others: list[Path] = []
    runs: list[Path] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, place in enumerate(places):
            if place.name.endswith(ENDING):
                runs += unpack(place, Path(folder) / str(number))  # two tables may have runs of the same name
            else:
                others.append(place)
        yield [*others, *sorted(runs, key=lambda run: run.name)]
