"""What an evaluation found: rows, tables of them as text, and files of them, from which a stopped measurement goes on.

Files are .jsonl. A cell is one number of a table, such as one depth at one length. Its row states what was measured,
on what and how, and is appended in full as soon as the number is known. Until then the cell's finished tests are in a
file of their own, which ends in .part. Rows that agree in the fields they are named by are the same measurement.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from lab.core import files
from lab.core.errors import CheckpointError, ConfigError
from lab.core.types import Row
from lab.runs.folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

HASH = "hash"
RESULTS = Path("results")  # of models, where -o names no folder; those of runs lie in their folders
WIDEST, NAME, HEAD = 120, 46, 44  # characters of a table as text, of a line's name, and of a heading in one row
Column = tuple[str, str | Callable[[Row], Any], str]  # heading, the field or a function of the row, format


class Result(NamedTuple):
    """The result of a command: text to print, the rows behind it, and the files that it has written."""

    text: str
    rows: Sequence[Mapping[str, Any]] = ()
    written: Path | None = None
    picture: Path | None = None

    @property
    def full_text(self) -> str:
        """The text, and the paths of the files."""
        lines = [self.text]
        if self.written:
            lines.append(f"written to {self.written}")
        if self.picture:
            lines.append(f"picture: {self.picture}")
        return "\n".join(filter(None, lines))


def document(name: str, results: Sequence[Result]) -> str:
    """Write results as one JSON object.

    Example:
        >>> document("x", [Result("text", [{"score": float("nan"), "n": 2}], Path("a.jsonl"))])
        '{"command": "x", "rows": [{"score": null, "n": 2}], "files": ["a.jsonl"], "pictures": []}'
    """
    whole: dict[str, Any] = {"command": name, "rows": [], "files": [], "pictures": []}
    for result in results:
        whole["rows"] += result.rows
        whole["files"] += filter(None, [result.written])
        whole["pictures"] += filter(None, [result.picture])
    return json.dumps(to_json(whole), allow_nan=False)


def to_json(value: Any) -> Any:
    """Turn a value into what JSON has: null in place of numbers that are not finite, plain numbers, text of paths.

    Example:
        >>> to_json({"a": (1, float("inf")), "b": Path("x")})
        {'a': [1, None], 'b': 'x'}
    """

    def convert_other(item: Any) -> Any:
        return item.item() if hasattr(item, "item") else str(item)  # a number of numpy or torch has `item`

    return to_jsonable_python(value, inf_nan_mode="null", fallback=convert_other)


def to_text(table: pd.DataFrame | Sequence[Mapping[str, Any]], form: str | Mapping[str, str] = "") -> str:
    """Write a data frame with its index, or rows, as text; the first column is on the left, unknown values are dashes.

    `form` is the format of all values, or of columns by name.

    Example:
        >>> rows = [{"lines": 20, "score": 0.5}, {"lines": 1000, "score": None}]
        >>> print(to_text(rows, {"lines": ",", "score": ".1%"}))
        lines  score
        20     50.0%
        1,000      -
    """
    import pandas as pd  # here, because commands that print no table start sooner without it

    frame = table if isinstance(table, pd.DataFrame) else pd.DataFrame(table).set_index(next(iter(table[0])))
    forms = form if isinstance(form, Mapping) else dict.fromkeys(frame.columns, form)
    names = [format(name, forms.get(str(frame.index.name), "")) for name in frame.index]
    cells = []
    for column, values in frame.astype(object).items():
        cells.append(["-" if pd.isna(value) else format(value, forms.get(column, "")) for value in values])
    lines = wrap_names(zip(names, zip(*cells, strict=True), strict=True))
    text = pd.DataFrame(lines, columns=["", *frame.columns]).set_index("")
    return text.rename_axis(None).rename_axis(columns=frame.index.name).to_string()


def wrap_names(lines: Iterable[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Write a long name of a table's line in several lines, of which only the first has the cells."""
    out = []
    for name, cells in lines:
        # wrap returns no line for an empty name, but its cells need one.
        first, *others = wrap(name, NAME, break_long_words=False) or [""]
        out.append([first, *cells])
        for other in others:
            out.append([f"  {other}", *[""] * len(cells)])
    return out


def fitted(table: pd.DataFrame) -> str:
    """Write a table at most WIDEST characters wide: long names in several rows, columns in blocks below one another."""
    import pandas as pd

    heads = [wrap(name, HEAD) for name in table]
    lines = [["", *head] for head in zip_longest(*heads, fillvalue="")]
    lines += wrap_names(zip(table.index, table.to_numpy().tolist(), strict=True))
    return pd.DataFrame(lines).set_index(0).rename_axis(None).to_string(header=False, line_width=WIDEST)


def columns_text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Write the columns of rows as text."""
    forms = {}
    lines: list[Row] = [{} for _ in rows]
    for name, value, form in columns:
        forms[name] = form
        for line, row in zip(lines, rows, strict=True):
            line[name] = row[value] if isinstance(value, str) else value(row)
    return to_text(lines, forms)


def pivot(rows: Sequence[Mapping[str, Any]], index: str, columns: str, values: str = "score") -> pd.DataFrame:
    """Spread rows over a table, both of its axes in the order in which their values first appear."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    return frame.pivot(index=index, columns=columns, values=values).loc[frame[index].unique(), frame[columns].unique()]


def named_series(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by length and name the `series` of each: its method, and model, checkpoint, precision if they differ.

    Example:
        >>> rows = [{"model": "a", "checkpoint": c, "precision": "fp32", "method": "rope", "length": 1} for c in "xy"]
        >>> [row["series"] for row in named_series(rows)], named_series(rows[:1])[0]["series"]
        (['rope, x', 'rope, y'], 'rope')
    """
    names = ["method"]
    for key in ("model", "checkpoint", "precision"):
        if len({row[key] for row in rows}) > 1:
            names.append(key)
    out = []
    for row in sorted(rows, key=lambda row: row["length"]):
        out.append({**row, "series": ", ".join(str(row[key]) for key in names)})
    return out


def limits(row: Mapping[str, Any], form: str = ".4g", factor: float = 1) -> str:
    """Write the limits of a row.

    Example:
        >>> limits({"low": 0.187, "high": 0.813}, ".1f", 100), limits({"low": None, "high": None})
        ('18.7 to 81.3', '-')
    """
    return "-" if row["low"] is None else f"{factor * row['low']:{form}} to {factor * row['high']:{form}}"


def natural_key(name: str) -> list[str | float]:
    """Return a key that sorts names so that the numbers in them rise.

    Example:
        >>> sorted(["b=9", "a=64", "a=128", "a=0.5"], key=natural_key)
        ['a=0.5', 'a=64', 'a=128', 'b=9']
    """
    # The pattern is one group, so that split returns text and numbers in turn, text first.
    return [float(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", name))]


class Results:
    """The rows of one file, each found again by the fields that name it.

    With a `key`, the file holds finished work that a command reads back in place of doing it again. Its first line is
    the key, which is all that decides the outcome, and each line has a hash of the line and the key:

        {"key": {"weights": "9c7344f7", "method": "rope+plain", "seed": 0}, "hash": "5d1c..."}
        {"length": 128, "test": 0, "answer": " 71432.", "hash": "e07f..."}

    Raises: CheckpointError for a broken line, or one whose hash is another one's; ConfigError where the file cannot be
        written.
    """

    def __init__(self, path: Path, named_by: Sequence[str], key: Mapping[str, object] | None = None) -> None:
        self.path = path
        self.named_by = tuple(named_by)
        self.key = None if key is None else json.dumps(key, sort_keys=True)
        self.stored: dict[str, Row] = {}
        # Results are appended: a link, as in a folder of somebody else, would change a file elsewhere.
        if path.is_symlink():
            raise ConfigError(f"{path}: is a link, results might go elsewhere; delete it, or use another -o")
        with files.writing(f"-o {path.parent}", "folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                # A crash in the middle of writing leaves a last line without its end, which is cut off.
                content = path.read_bytes()
                if not content.endswith(b"\n"):  # another process may have appended since
                    os.truncate(path, content.rfind(b"\n") + 1)
            self.read()
        if key is not None and not self.stored:
            self.append([{"key": dict(key)}])

    def __iter__(self) -> Iterator[Row]:
        return iter(self.stored.values())

    def read(self) -> None:
        """Read the rows of the file; reject a line whose hash is another."""
        for number, row in enumerate(RunFolder(self.path.parent).read(self.path.name), start=1):
            if self.key is not None and row.pop(HASH, None) != self.hash_row(row):
                error = f"line {number} was changed, its hash is another; delete the line, and it is measured again"
                raise CheckpointError(f"{self.path}: {error}")
            self.stored[self.name(row)] = row

    def hash_row(self, row: Row) -> str:
        # With the key in its hash, a line that is copied from another file is rejected.
        return short_hash(f"{self.key}{json.dumps(row)}", 16)

    def name(self, row: Mapping[str, object]) -> str:
        return json.dumps([row.get(field) for field in self.named_by])

    def digest(self, row: Mapping[str, object]) -> str:
        return short_hash(self.name(row))

    def find(self, row: Mapping[str, object]) -> Row | None:
        return self.stored.get(self.name(row))

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append rows; they are on the disk when this returns."""
        lines = ""
        for row in map(dict, rows):
            whole = row if self.key is None else {**row, HASH: self.hash_row(row)}
            lines += json.dumps(whole) + "\n"
            self.stored[self.name(row)] = row
        with files.writing(f"-o {self.path.parent}", "folder"), self.path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            # Finished tests are never run again, so that they must survive a loss of power.
            os.fsync(file.fileno())

    def add(self, row: Mapping[str, object], tests: tuple[str, Sequence[Row]] | None = None) -> Row:
        """Append the row of a finished cell; `tests`, a file name and records, are written before it."""
        whole = dict(row)
        if tests is not None:
            write_rows(self.path.parent / tests[0], tests[1])
            whole["cases"] = tests[0]
        # The row follows its tests and precedes the deletion of the part, so that a crash in between loses nothing.
        self.append([whole])
        if tests is not None:
            self.part(tests[0]).unlink(missing_ok=True)
        return whole

    def part(self, tests: str) -> Path:
        return self.path.parent / f"{tests}.part"


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a file of rows, whole or not at all.

    Raises: ConfigError where the file cannot be written.
    """
    with files.writing(f"-o {path.parent}", "folder"):
        RunFolder(path.parent).write_records(path.name, [to_json(row) for row in rows])


def short_hash(text: str, digits: int = 8) -> str:
    """Name a text by hexadecimal digits of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
