"""Ours beside theirs: the results of every row's commands, as the table's columns read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from eval.engine.rows import pivot, to_text
from eval.papers.running import Job, Sized, expand
from eval.papers.table import Column, Number
from lab.errors import CheckpointError
from lab.train.folder import RunFolder

Row = dict[str, Any]
VARYING = ("commit", "hardware", "cases")  # fields of a result that is the same measured again


def compare(sized: Sized, jobs: Sequence[Job]) -> list[Row]:
    """List every cell: ours over all runs of the row, theirs, and the difference where both are numbers.

    Raises: LabError for results that are broken.
    """
    of_row: dict[str, list[Job]] = {}
    for job in jobs:
        of_row.setdefault(job.row, []).append(job)
    published = sized.table.published
    rows = list(dict.fromkeys([*of_row, *(() if sized.mini else published)]))
    out = []
    for row in rows:
        for name, column in sized.table.columns.items():
            each = [x for x in (measured(column, job) for job in of_row.get(row, ())) if x is not None]
            theirs = published.get(row, {}).get(name)
            if each or theirs is not None:
                cell = beside(each, theirs)
                of_scale = {"scale": "mini", "difference": None} if sized.mini else {"scale": "full"}
                out.append({"row": row, "column": name, **cell, **of_scale})
    return out


def beside(each: Sequence[float], theirs: Number) -> Row:
    """Put the mean of our runs beside the paper's number.

    Example:
        >>> beside([1.0, 2.0], 1.25)
        {'ours': 1.5, 'runs': 2, 'theirs': 1.25, 'difference': 0.25}
        >>> beside([], "OOM")
        {'ours': None, 'runs': 0, 'theirs': 'OOM', 'difference': None}
    """
    ours = sum(each) / len(each) if each else None
    both = ours is not None and isinstance(theirs, int | float)
    return {"ours": ours, "runs": len(each), "theirs": theirs, "difference": ours - theirs if both else None}  # type: ignore[operator]


def measured(column: Column, job: Job) -> float | None:
    """Read a column's number from a row's results; None where it has none.

    Raises: LabError.
    """
    found = [row[column.field] for row in results(column, job) if fits(row, column.where, job.values)]
    numbers = [float(value) * column.times for value in found if isinstance(value, int | float)]
    if not numbers:
        return None
    return {"mean": sum(numbers) / len(numbers), "sum": sum(numbers), "last": numbers[-1]}[column.pick]


def results(column: Column, job: Job) -> Iterator[Row]:
    """Read the results of a column's files, the newest of those measured twice.

    Raises: CheckpointError for a broken file, or results without the column's field.
    """
    place = Path(expand(column.file, job.values)) if column.file.startswith("{model}") else job.out / column.file
    newest: dict[str, Row] = {}
    for path in sorted(place.parent.glob(place.name)):
        for row in rows_in(path, column.under):
            named = {k: v for k, v in row.items() if not isinstance(v, float | dict | list) and k not in VARYING}
            newest[json.dumps(named)] = row
    yield from (row for row in newest.values() if column.field in row)


def rows_in(path: Path, under: str | None) -> list[Row]:
    """Read a file of results.

    Raises: CheckpointError.
    """
    if path.suffix == ".jsonl":
        return [row for row in RunFolder(path.parent).read(path.name) if isinstance(row, dict)]
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        return list(whole[under]) if under else [whole]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: holds no results ({error}); move it away and run the command again") from error


def fits(row: Row, where: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a result agrees with a column's conditions, each a pattern or a list of them.

    Example:
        >>> fits({"task": "niah_single_1", "length": 192}, {"task": "niah_*", "length": "{long}"}, {"long": 192})
        True
    """
    for name, wanted in where.items():
        patterns = [expand(str(each), values) for each in (wanted if isinstance(wanted, list) else [wanted])]
        if not any(fnmatchcase(str(row.get(name)), pattern) for pattern in patterns):
            return False
    return True


def table_text(sized: Sized, cells: Sequence[Row]) -> str:
    """Format the cells, rows and columns as in the paper: ours, theirs in brackets, the difference."""
    table = sized.table
    scale = "in miniature; the paper's numbers are of another scale" if sized.mini else "at full size"
    head = f"{sized.name}: {table.title}\n{table.source}; {scale}\nours [theirs]{'' if sized.mini else ' difference'}"
    if not cells:
        return f"{head}\nno results"
    text = to_text(pivot([{**cell, "cell": words(cell)} for cell in cells], "row", "column", "cell"))
    return "\n".join([head, "", text, *([table.mini.note] if sized.mini else [])])


def words(cell: Row) -> str:
    """Write a cell.

    Example:
        >>> words({"ours": 97.0, "theirs": 97.2, "difference": -0.2}), words({"ours": None, "theirs": "OOM"})
        ('97 [97.2] -0.2', '- [OOM]')
    """
    ours = "-" if cell["ours"] is None else f"{cell['ours']:.4g}"
    theirs = cell["theirs"]
    shown = "" if theirs is None else f" [{theirs if isinstance(theirs, str) else format(theirs, 'g')}]"
    return f"{ours}{shown}" + ("" if cell.get("difference") is None else f" {cell['difference']:+.3g}")
