"""The result of a command as text: tables, names, limits, and the JSON document of all results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from lab.core.types import Row

if TYPE_CHECKING:
    import pandas as pd

RESULTS = Path("results")  # of models, where -o names no folder; those of runs lie in their folders
WIDEST, NAME, HEAD = 120, 46, 44  # characters of a table as text, of a line's name, and of a heading in one row
Column = tuple[str, str | Callable[[Row], Any], str]  # heading, the field or a function of the row, format


class Result(NamedTuple):
    """The result of a command: text to print, the rows behind it, and the files that it has written."""

    text: str
    rows: Sequence[Row] = ()
    files: Sequence[Path] = ()
    picture: Path | None = None

    @property
    def full_text(self) -> str:
        """The text, and the paths of the files."""
        lines = [self.text]
        if len(self.files) > 1:
            lines.append(f"written to {len(self.files)} files in {self.files[0].parent}")
        elif self.files:
            lines.append(f"written to {self.files[0]}")
        if self.picture:
            lines.append(f"picture: {self.picture}")
        return "\n".join(filter(None, lines))


def document(name: str, results: Sequence[Result]) -> str:
    """Write results as one JSON object.

    Example:
        >>> document("x", [Result("text", [{"score": float("nan"), "n": 2}], [Path("a.jsonl")])])
        '{"command": "x", "rows": [{"score": null, "n": 2}], "files": ["a.jsonl"], "pictures": []}'
    """
    whole: Row = {"command": name, "rows": [], "files": [], "pictures": []}
    for result in results:
        whole["rows"] += result.rows
        whole["files"] += result.files
        whole["pictures"] += filter(None, [result.picture])
    return json.dumps(to_jsonable(whole), allow_nan=False)


def to_jsonable(value: Any) -> Any:
    """Turn a value into what JSON has: null in place of numbers that are not finite, plain numbers, text of paths.

    Example:
        >>> to_jsonable({"a": (1, float("inf")), "b": Path("x")})
        {'a': [1, None], 'b': 'x'}
    """

    def convert_other(item: Any) -> Any:
        return item.item() if hasattr(item, "item") else str(item)  # a number of numpy or torch has `item`

    return to_jsonable_python(value, inf_nan_mode="null", fallback=convert_other)


def to_text(table: pd.DataFrame | Sequence[Row], form: str | Mapping[str, str] = "") -> str:
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


def pivot(rows: Sequence[Row], index: str, columns: str, values: str = "score") -> pd.DataFrame:
    """Spread rows over a table, both of its axes in the order in which their values first appear."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    return frame.pivot(index=index, columns=columns, values=values).loc[frame[index].unique(), frame[columns].unique()]


def limits(row: Row, form: str = ".4g", factor: float = 1) -> str:
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
