"""Lays results out as one table: a line for each task, a column for each model and method, as text, CSV or HTML."""

from __future__ import annotations

import csv
import html
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.compare.records import Record
from eval.compare.results import LEVEL, Verdict, adjust, compare

COLUMNS = ("model", "checkpoint", "method")  # what a column is, where --by says nothing
WIDER = ("precision", "weights")  # and where two results of one task would else stand in one cell
FIELDS = (*COLUMNS, *WIDER)
CHOICES = ("model", "checkpoint", "method", "precision", "length", "task")
Name = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Results by line and column, and what differs from the first column of a line."""

    by: tuple[str, ...]
    rest: tuple[str, ...]
    lines: list[Name]
    columns: list[Name]
    cells: dict[tuple[Name, Name], Record]
    verdicts: dict[tuple[Name, Name], Verdict]
    older: int
    again: int

    @property
    def common(self) -> str:
        """Name what all columns have in common."""
        alike = [{column[k] for column in self.columns} for k in range(len(self.by))]
        return ", ".join(word for values in alike for word in values if len(values) == 1 and word)

    @property
    def headings(self) -> list[str]:
        """Name the columns by the fields that tell them apart; by the first where there is one column."""
        varying = [k for k in range(len(self.by)) if len({column[k] for column in self.columns}) > 1] or [0]
        return [", ".join(column[k] for k in varying) for column in self.columns]

    def is_best(self, line: Name, column: Name) -> bool:
        """Return whether no column of a line does better, and one does worse."""
        row = [self.cells[line, other] for other in self.columns if (line, other) in self.cells]
        mine = self.cells[line, column]
        scores = [record.score for record in row]
        if len(set(scores)) < 2 or mine.higher_is_better is None:
            return False
        return mine.score == (max(scores) if mine.higher_is_better else min(scores))


def arrange(records: Sequence[Record], by: Sequence[str] | None) -> Grid:
    """Put results into lines and columns and test the differences.

    Of one model and method, the newest checkpoint stands in the table, unless columns are asked for by it. A result
    given twice is the one of more tests, or the later one.
    """
    kept = list(records) if by is not None and "checkpoint" in by else newest(records)
    fields = widened(kept) if by is None else tuple(by)
    rest = () if by is None else tuple(name for name in FIELDS if name not in fields)
    cells: dict[tuple[Name, Name], Record] = {}
    again = 0
    for record in kept:
        place = line_of(record, fields, rest), column_of(record, fields)
        there = cells.get(place)
        again += there is not None
        if there is None or record.n >= there.n:
            cells[place] = record
    lines = sorted({line for line, _ in cells}, key=lambda line: sort_key(line, cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    if "length" in fields:
        columns.sort(key=lambda column: int(column[fields.index("length")].replace(",", "") or 0))
    verdicts = differences(lines, columns, cells)
    return Grid(fields, rest, lines, columns, cells, verdicts, len(records) - len(kept), again)


def newest(records: Sequence[Record]) -> list[Record]:
    """Keep each model's and method's newest checkpoint in each evaluation."""
    last: dict[tuple[str, ...], str] = {}
    for record in records:
        name = (record.evaluation, record.model, record.method)
        last[name] = max(last.get(name, ""), record.checkpoint or "")
    return [r for r in records if (r.checkpoint or "") == last[r.evaluation, r.model, r.method]]


def widened(records: Sequence[Record]) -> tuple[str, ...]:
    """Choose the fields of columns so that results of other weights or precision stand apart."""
    fields: tuple[str, ...] = COLUMNS
    for name in WIDER:
        values: dict[tuple[Name, Name], set[str]] = {}
        for record in records:
            place = line_of(record, fields, ()), column_of(record, fields)
            values.setdefault(place, set()).add(value_of(record, name))
        fields += (name,) if any(len(each) > 1 for each in values.values()) else ()
    return fields


def column_of(record: Record, fields: Sequence[str]) -> Name:
    """Name a result's column."""
    return tuple(value_of(record, name) for name in fields)


def value_of(record: Record, name: str) -> str:
    """Write one field of a result."""
    value = getattr(record, name)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def line_of(record: Record, fields: Sequence[str], rest: Sequence[str]) -> Name:
    """Name what results must agree in to stand in one line: all that is no column."""
    own = [value_of(record, name) for name in ("evaluation", "task", "length", *rest) if name not in fields]
    loose = {"length": ("asked",), "task": ("asked",)}  # said again by lines of line retrieval
    passed_over = {word for name in fields for word in loose.get(name, ())}
    alike = [f"{name}={value}" for name, value in record.alike if name not in passed_over]
    return (*own, record.unit, *alike)


def sort_key(line: Name, cells: Mapping[tuple[Name, Name], Record]) -> tuple[str, str, int, Name]:
    """Order lines by evaluation, task and length."""
    record = next(record for (other, _), record in cells.items() if other == line)
    return record.evaluation, record.task, record.length or 0, line


def differences(
    lines: Sequence[Name], columns: Sequence[Name], cells: Mapping[tuple[Name, Name], Record]
) -> dict[tuple[Name, Name], Verdict]:
    """Compare every result with the first column of its line, where that has one."""
    places = [(line, column) for line in lines for column in columns[1:]]
    asked = [place for place in places if place in cells and (place[0], columns[0]) in cells]
    raw = {str(k): compare(cells[line, columns[0]], cells[line, column]) for k, (line, column) in enumerate(asked)}
    return dict(zip(asked, adjust(raw).values(), strict=True))


def labels(grid: Grid) -> list[str]:
    """Name the lines by what tells them apart."""
    records = [next(record for (line, _), record in grid.cells.items() if line == own) for own in grid.lines]
    varying = [name for name in grid.rest if len({getattr(record, name) for record in records}) > 1]
    firsts = []
    for record in records:
        words = [record.evaluation, *(value_of(record, name) for name in ("task",) if name not in grid.by)]
        if "length" not in grid.by and record.length is not None and f"{record.length} " not in record.task:
            words.append(f"{record.length:,} tokens")
        firsts.append(" ".join([*words, *(value_of(record, name) for name in varying)]))
    counts, out = Counter(firsts), []
    for first, record in zip(firsts, records, strict=True):
        twins = [other for text, other in zip(firsts, records, strict=True) if text == first]
        apart = [f"{k}={v}" for k, v in record.alike if len({dict(t.alike).get(k) for t in twins}) > 1]
        out.append(" ".join([first, *apart]) if counts[first] > 1 else first)
    return out


def number(record: Record) -> str:
    """Write a score with its interval, shares in percent.

    Example:
        >>> from types import SimpleNamespace as Row
        >>> number(Row(unit="share", score=0.5, low=0.25, high=0.75, n=8))
        '50.0 (25.0 to 75.0), n=8'
    """
    factor = 100 if record.unit == "share" else 1
    shown = [None if x is None else factor * x for x in (record.score, record.low, record.high)]
    form = ".1f" if record.unit in ("share", "percent") else ".4g"
    limits = f" ({shown[1]:{form}} to {shown[2]:{form}})" if None not in shown else ""
    return f"{shown[0]:{form}}{limits}, n={record.n:,}"


def mark(verdict: Verdict | None) -> str:
    """Mark a difference: * significant, ? not tested."""
    return "" if verdict is None else "*" if verdict.significant else "?" if verdict.test is None else ""


def legend(grid: Grid) -> list[str]:
    """Explain what the marks mean, by which tests, and what was left out."""
    heading = grid.headings[0]
    tests = Counter(verdict.test for verdict in grid.verdicts.values() if verdict.test)
    out = [f"All columns: {grid.common}."] if grid.common else []
    out.append("Shares in percent, with intervals where they are known; the best of a line is bold.")
    if tests:
        named = ", ".join(f"{name} ({count})" for name, count in tests.items())
        total = f"p adjusted for {sum(tests.values())} comparisons (Holm)"
        out.append(f"* differs from {heading} at {LEVEL:g}: {named}; {total}.")
    untested = sum(verdict.test is None for verdict in grid.verdicts.values())
    if untested:
        out.append(f"? no test ({untested}): neither outcomes of the same tests nor shares of tests are recorded.")
    if grid.older:
        out.append(f"{grid.older:,} results of older checkpoints are left out; --by=checkpoint shows them.")
    if grid.again:
        out.append(f"{grid.again:,} results appear twice; those of more tests, or the later ones, are shown.")
    return out


def markdown(grid: Grid) -> str:
    """Write the table as Markdown, which is also how it is printed."""
    table = [["", *grid.headings]]
    for line, label in zip(grid.lines, labels(grid), strict=True):
        table.append([label, *(cell(grid, line, column, "**{}**") for column in grid.columns)])
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    rows = [
        "| " + " | ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([*rows, "", *(f"{text}  " for text in legend(grid))])


def cell(grid: Grid, line: Name, column: Name, bold: str) -> str:
    """Write one cell; a dash where there is no result."""
    record = grid.cells.get((line, column))
    if record is None:
        return "-"
    text = number(record)
    return (bold.format(text) if grid.is_best(line, column) else text) + mark(grid.verdicts.get((line, column)))


def as_csv(grid: Grid) -> str:
    """Write one line for each result, with all that is known of it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("evaluation", "task", "length", *FIELDS)
    writer.writerow([*names, "protocol", "n", "score", "low", "high", "unit", "best", "test", "p", "p_adjusted"])
    for line in grid.lines:
        for column in grid.columns:
            record = grid.cells.get((line, column))
            if record is not None:
                verdict = grid.verdicts.get((line, column), Verdict(None))
                alike = " ".join(f"{name}={value}" for name, value in record.alike)
                known = [record.n, record.score, record.low, record.high, record.unit, grid.is_best(line, column)]
                judged = [verdict.test, verdict.raw_p, verdict.p]
                writer.writerow([*(getattr(record, name) for name in names), alike, *known, *judged])
    return out.getvalue()


def as_html(grid: Grid) -> str:
    """Write a page that needs no other file."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in ("", *grid.headings))
    body = []
    for line, label in zip(grid.lines, labels(grid), strict=True):
        data = []
        for column in grid.columns:
            text = html.escape(cell(grid, line, column, "{}"))
            best = (line, column) in grid.cells and grid.is_best(line, column)
            data.append(f"<td><b>{text}</b></td>" if best else f"<td>{text}</td>")
        body.append(f"<tr><th>{html.escape(label)}</th>{''.join(data)}</tr>")
    style = "table{border-collapse:collapse}td,th{border:1px solid #999;padding:2px 8px;text-align:left}"
    notes = "".join(f"<p>{html.escape(text)}</p>" for text in legend(grid))
    rows = "\n".join([f"<tr>{head}</tr>", *body])
    top = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Results</title><style>{style}</style>'
    return f"{top}\n<table>\n{rows}\n</table>\n{notes}\n</html>\n"


WRITERS = {".md": markdown, ".csv": as_csv, ".html": as_html}
