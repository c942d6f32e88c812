"""Tables and limits as text, for printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

LEAST = 1e-5  # share that is written out


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
    words = {
        name: ["-" if pd.isna(value) else format(value, forms.get(name, "")) for value in values]
        for name, values in frame.astype(object).items()
    }
    index = [format(name, forms.get(str(frame.index.name), "")) for name in frame.index]
    text: str = pd.DataFrame(words, index).rename_axis(columns=frame.index.name).to_string()
    return text


def pivot(rows: Sequence[Mapping[str, Any]], index: str, columns: str, values: str = "score") -> pd.DataFrame:
    """Spread rows over a table, both of its axes in the order in which their values first appear."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    return frame.pivot(index=index, columns=columns, values=values).loc[frame[index].unique(), frame[columns].unique()]


def whole_grid(rows: Sequence[Mapping[str, Any]], index: str, columns: str, values: str = "score") -> pd.DataFrame:
    """List every cell of a grid, by rising columns and rows, unknown ones as NaN, for a heat map."""
    import pandas as pd

    return (
        pd.DataFrame(rows)
        .pivot(index=index, columns=columns, values=values)
        .melt(value_name=values, ignore_index=False)
        .reset_index()
    )


def named_series(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by length and name the `series` of each: its method, and model, checkpoint, precision if they differ.

    Example:
        >>> rows = [{"model": "a", "checkpoint": c, "precision": "fp32", "method": "rope", "length": 1} for c in "xy"]
        >>> [row["series"] for row in named_series(rows)], named_series(rows[:1])[0]["series"]
        (['rope, x', 'rope, y'], 'rope')
    """
    apart = [key for key in ("model", "checkpoint", "precision") if len({row[key] for row in rows}) > 1]
    rising = sorted(rows, key=lambda row: row["length"])
    return [{**row, "series": ", ".join([row["method"], *(str(row[key]) for key in apart)])} for row in rising]


def limits(row: Mapping[str, Any], form: str = ".4g", factor: float = 1) -> str:
    """Write the limits of a row.

    Example:
        >>> limits({"low": 0.187, "high": 0.813}, ".1f", 100), limits({"low": None, "high": None})
        ('18.7 to 81.3', '-')
    """
    return "-" if row["low"] is None else f"{factor * row['low']:{form}} to {factor * row['high']:{form}}"


def percent(share: float) -> str:
    """Write a share with two digits.

    Example:
        >>> percent(1.0), percent(0.256), percent(0.0123), percent(0.00021), percent(3e-6), percent(0.0)
        ('100%', '26%', '1.2%', '0.021%', '<0.001%', '0%')
    """
    if 0 < share < LEAST:
        return f"<{100 * LEAST:g}%"
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
