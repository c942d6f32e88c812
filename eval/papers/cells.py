"""Our numbers of a paper's table, next to the published ones."""

import itertools
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
    for row, (name, column) in itertools.product(dict.fromkeys(names), table.columns.items()):
        numbers = [read_cell_number(column, one) for one in measured if one.row == row]
        values = [number for number in numbers if number is not None]
        # A row of ours may be no row of the paper.
        theirs = table.published.get(row, {}).get(name)
        if values or theirs is not None:
            ours = difference = None
            if values:
                ours = sum(values) / len(values)
                # A miniature is of another scale, and some published cells are words such as OOM.
                if isinstance(theirs, int | float) and not mini:
                    difference = ours - theirs
            cell: Row = {"row": row, "column": name, "ours": ours, "runs": len(values), "theirs": theirs}
            cells.append(cell | {"difference": difference, "scale": "mini" if mini else "full"})
    return cells


def read_cell_number(column: Column, one: Measured) -> float | None:
    """Read a column's number from a row's results; None without one. Of a repeated measurement the newest counts."""
    place: Path = one.values["out"] / column.file
    if column.file.startswith("{model}"):
        place = Path(expand_placeholders(column.file, one.values))
    newest: dict[str, Row] = {}
    for row in itertools.chain(*map(read_records, sorted(place.parent.glob(place.name)))):
        # Numbers differ when a row is measured again; what names the row is text, whole numbers and truth values.
        named = {}
        for name, value in row.items():
            if not isinstance(value, float | dict | list) and name not in ("commit", "hardware", "cell"):
                named[name] = value
        if "test" not in row:
            newest[json.dumps(named)] = row
    values = []
    for row in newest.values():
        value = row.get(column.field)
        if isinstance(value, int | float) and fits(row, column.where, one.values):
            values.append(float(value) * column.times)
    if not values:
        return None
    picks = {"mean": sum(values) / len(values), "first": values[0], "last": values[-1]}
    return picks[column.pick]


def fits(row: Row, where: Row, values: Row) -> bool:
    """Return whether a result agrees with a column's conditions, each a pattern or a list of them.

    Example:
        >>> fits({"task": "niah_single_1", "length": 192}, {"task": "niah_*", "length": "{long}"}, {"long": 192})
        True
    """
    for name, wanted in where.items():
        patterns = wanted if isinstance(wanted, list) else [wanted]
        if not any(fnmatchcase(str(row.get(name)), expand_placeholders(str(each), values)) for each in patterns):
            return False
    return True


def table_text(table: PaperTable, cells: Sequence[Row], *, mini: bool) -> str:
    """Format the cells, rows and columns as in the paper: ours, theirs in brackets, the difference."""
    scale, heads = "at full size", "ours [theirs] difference"
    if mini:
        scale, heads = "in miniature; the paper's numbers are of another scale", "ours [theirs]"
    text = "no results"
    if cells:
        texts = [{**cell, "cell": format_table_cell(cell)} for cell in cells]
        text = f"\n{to_text(pivot(texts, 'row', 'column', 'cell'))}"
    note = [table.mini.note] if mini and cells else []
    return "\n".join([table.title, f"{table.source}; {scale}", heads, text, *note])


def format_table_cell(cell: Row) -> str:
    """Write our number, the published one in brackets, and the difference.

    Example:
        >>> format_table_cell({"ours": 97.0, "theirs": 97.2, "difference": -0.2})
        '97 [97.2] -0.2'
        >>> format_table_cell({"ours": None, "theirs": "OOM", "difference": None})
        '- [OOM]'
    """
    theirs, difference = cell["theirs"], cell["difference"]
    text = "-" if cell["ours"] is None else f"{cell['ours']:.4g}"
    if theirs is not None:
        text += f" [{theirs}]" if isinstance(theirs, str) else f" [{theirs:g}]"
    return text if difference is None else f"{text} {difference:+.3g}"
