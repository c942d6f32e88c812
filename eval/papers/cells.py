"""Our numbers of a paper's table, next to the published ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from eval.engine.text import pivot, to_text
from eval.papers.table import Column, PaperTable, expand_placeholders
from lab.core.types import Row
from lab.results.store import read_records


@dataclass(frozen=True)
class Measured:
    """One row on one model: its values, of which `out` is its folder, and the arguments of each command."""

    row: str
    values: Row
    commands: tuple[tuple[str, ...], ...]


def compare_cells(table: PaperTable, measured: Sequence[Measured], *, mini: bool) -> list[Row]:
    """List every cell: ours over all runs of the row, theirs, and the difference where both are numbers."""
    cells = []
    names = [one.row for one in measured]
    if not mini:
        names += table.published
    for row in dict.fromkeys(names):
        for name, column in table.columns.items():
            values = []
            for one in measured:
                number = read_cell_number(column, one) if one.row == row else None
                if number is not None:
                    values.append(number)
            # A row of ours may be no row of the paper.
            theirs = table.published.get(row, {}).get(name)
            if not values and theirs is None:
                continue
            cell: Row = {
                "row": row,
                "column": name,
                "ours": None,
                "runs": len(values),
                "theirs": theirs,
                "difference": None,
                "scale": "mini" if mini else "full",
            }
            if values:
                cell["ours"] = sum(values) / len(values)
                # A miniature is of another scale, and some published cells are words such as OOM.
                if isinstance(theirs, int | float) and not mini:
                    cell["difference"] = cell["ours"] - theirs
            cells.append(cell)
    return cells


def read_cell_number(column: Column, one: Measured) -> float | None:
    """Read a column's number from a row's results; None without one. Of a repeated measurement the newest counts."""
    place: Path = one.values["out"] / column.file
    if column.file.startswith("{model}"):
        place = Path(expand_placeholders(column.file, one.values))
    newest: dict[str, Row] = {}
    for path in sorted(place.parent.glob(place.name)):
        if path.suffix == ".json":
            rows = [json.loads(path.read_text("utf-8"))]
        else:
            rows = [row for row in read_records(path) if "test" not in row]
        for row in rows:
            # Numbers differ when a row is measured again; what names the row is text, whole numbers and truth values.
            named = {}
            for name, value in row.items():
                if not isinstance(value, float | dict | list) and name not in ("commit", "hardware", "cell"):
                    named[name] = value
            newest[json.dumps(named)] = row
    values = []
    for row in newest.values():
        value = row.get(column.field)
        if isinstance(value, int | float) and fits(row, column.where, one.values):
            values.append(float(value) * column.times)
    if not values:
        return None
    if column.pick == "mean":
        return sum(values) / len(values)
    return values[0 if column.pick == "first" else -1]


def fits(row: Row, where: Row, values: Row) -> bool:
    """Return whether a result agrees with a column's conditions, each a pattern or a list of them.

    Example:
        >>> fits({"task": "niah_single_1", "length": 192}, {"task": "niah_*", "length": "{long}"}, {"long": 192})
        True
    """
    for name, wanted in where.items():
        patterns = wanted if isinstance(wanted, list) else [wanted]
        text = str(row.get(name))
        if not any(fnmatchcase(text, expand_placeholders(str(pattern), values)) for pattern in patterns):
            return False
    return True


def table_text(table: PaperTable, cells: Sequence[Row], *, mini: bool) -> str:
    """Format the cells, rows and columns as in the paper: ours, theirs in brackets, the difference."""
    scale, heads = "at full size", "ours [theirs] difference"
    if mini:
        scale, heads = "in miniature; the paper's numbers are of another scale", "ours [theirs]"
    lines = [table.title, f"{table.source}; {scale}", heads]
    if not cells:
        return "\n".join([*lines, "no results"])
    texts = [{**cell, "cell": format_table_cell(cell)} for cell in cells]
    lines += ["", to_text(pivot(texts, "row", "column", "cell"))]
    if mini:
        lines.append(table.mini.note)
    return "\n".join(lines)


def format_table_cell(cell: Row) -> str:
    """Write our number, the published one in brackets, and the difference.

    Example:
        >>> format_table_cell({"ours": 97.0, "theirs": 97.2, "difference": -0.2})
        '97 [97.2] -0.2'
        >>> format_table_cell({"ours": None, "theirs": "OOM", "difference": None})
        '- [OOM]'
    """
    theirs = cell["theirs"]
    text = "-"
    if cell["ours"] is not None:
        text = f"{cell['ours']:.4g}"
    if isinstance(theirs, str):
        text += f" [{theirs}]"
    elif theirs is not None:
        text += f" [{theirs:g}]"
    if cell["difference"] is not None:
        text += f" {cell['difference']:+.3g}"
    return text
