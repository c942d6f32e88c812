"""Writes a table of results: as text, Markdown, LaTeX, HTML, or one line for each result as CSV."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any

import pandas as pd

from eval.compare.table import COLUMNS, WIDER, Grid

LEVEL = 0.05
FORMS = {"share": ".1f", "percent": ".1f", "tokens": ",.1f", "pairs": ",.0f"}  # of units; of all others .4g
KNOWN = ["n", "seeds", "score", "low", "high", "below", "unit", "best", "test", "p", "p_adjusted"]


def number(cell: Any) -> str:
    """Write a score with its limits, shares in percent.

    Example:
        >>> from types import SimpleNamespace as Row
        >>> number(Row(unit="share", score=0.5, low=0.25, high=0.75, n=8, seeds=1, below=None))
        '50.0 (25.0 to 75.0), n=8'
        >>> number(Row(unit="tokens", score=None, low=None, high=None, n=None, seeds=3, below=128))
        '<128, 3 seeds'
    """
    factor, form, tail = 100 if cell.unit == "share" else 1, FORMS.get(cell.unit, ".4g"), ".0" * (cell.unit == "tokens")
    score, low, high, below = (
        None if pd.isna(x) else f"{factor * x:{form}}".removesuffix(tail)
        for x in (cell.score, cell.low, cell.high, cell.below)
    )
    text = score or f"<{below}"
    if score and low and (high or cell.unit == "tokens"):
        text += f" ({low} to {high})" if high else f" ({low} or more)"
    return text + (f", {cell.seeds} seeds" if cell.seeds > 1 else "" if pd.isna(cell.n) else f", n={cell.n:,.0f}")


def spread(grid: Grid, best: str = "{}") -> pd.DataFrame:
    """Spread the cells as text, `best` around the best of a line; * is significant, ? not tested, - no result."""
    words = []
    for cell in grid.cells.itertuples():
        mark = "*" if cell.compared and cell.p_adjusted <= LEVEL else "?" if cell.compared and not cell.test else ""
        words.append((best if cell.best else "{}").format(number(cell)) + mark)
    columns = grid.cells.sort_values("number").column.unique()
    table = grid.cells.assign(text=words).pivot(index="line", columns="column", values="text")
    return table.loc[grid.cells.line.unique(), columns].fillna("-").rename_axis(index=None, columns=grid.name)


def legend(grid: Grid, best: str = "is bold") -> list[str]:
    """Explain the marks, the tests, and what was left out."""
    tests, untested = grid.cells.test.value_counts(), int((grid.cells.compared & grid.cells.test.isna()).sum())
    first = grid.cells.column[grid.cells.number == 0].iloc[0]
    named = ", ".join(f"{name} ({count})" for name, count in tests.items())
    lines = {
        f"All columns: {grid.common}.": grid.common,
        f"Shares in percent, with limits where they are known; the best of a line {best}.": True,
        "Of several seeds the mean, with 95% limits by the t distribution.": (grid.cells.seeds > 1).any(),
        f"* differs from {first} at {LEVEL:g}: {named}; p adjusted for {tests.sum()} comparisons (Holm).": len(tests),
        f"? no test ({untested}): neither outcomes of the same tests nor shares of tests are recorded.": untested,
        f"{grid.older:,} results of older checkpoints are left out; --by=checkpoint shows them.": grid.older,
        f"{grid.again:,} results appear twice; those of more tests, or the later ones, are shown.": grid.again,
    }
    return [text for text, is_shown in lines.items() if is_shown]


def as_text(grid: Grid) -> str:
    """Write the table as it is printed."""
    return "\n".join([spread(grid, "^{}").to_string(), "", *legend(grid, "has a ^")])


def as_markdown(grid: Grid) -> str:
    """Write the table as Markdown."""
    return "\n".join([spread(grid, "**{}**").to_markdown(), "", *(f"{text}  " for text in legend(grid))])


def styled(grid: Grid, escape: str) -> Any:
    """Format the table with the best of each line in bold."""
    table = spread(grid)
    bold = (spread(grid, "^{}") != table).replace({True: "font-weight: bold;", False: ""})
    style = table.style.format(escape=escape).format_index(escape=escape, axis=0).format_index(escape=escape, axis=1)
    return style.apply(lambda _: bold, axis=None)


def as_html(grid: Grid) -> str:
    """Write a page that needs no other file."""
    looks = {"": "border-collapse: collapse", "td, th": "border: 1px solid #999; padding: 2px 8px; text-align: left"}
    style = styled(grid, "html").set_table_styles([{"selector": name, "props": look} for name, look in looks.items()])
    page: str = style.set_caption("<br>".join(map(html.escape, legend(grid)))).to_html(doctype_html=True)
    return page


def as_latex(grid: Grid) -> str:
    """Write a table of LaTeX's booktabs, the legend as comments."""
    table: str = styled(grid, "latex").to_latex(convert_css=True, hrules=True)
    return table + "".join(f"% {text}\n" for text in legend(grid))


def known(grid: Grid) -> pd.DataFrame:
    """Lay out all that is known of each result."""
    protocol = [" ".join(f"{name}={json.dumps(value)}" for name, value in alike.items()) for alike in grid.cells.alike]
    names = list(dict.fromkeys(["evaluation", "task", "length", *COLUMNS, *WIDER, *grid.by, "protocol", *KNOWN]))
    return grid.cells.assign(protocol=protocol)[names]


def as_csv(grid: Grid) -> str:
    """Write one line for each result, with all that is known of it."""
    text: str = known(grid).to_csv(index=False)
    return text


def rows_of(grid: Grid) -> list[dict[str, Any]]:
    """List the results as they are in the CSV, without what is unknown."""
    return [{name: value for name, value in row.items() if pd.notna(value)} for row in known(grid).to_dict("records")]


WRITERS: dict[str, Callable[[Grid], str]] = {
    ".txt": as_text,
    ".md": as_markdown,
    ".csv": as_csv,
    ".html": as_html,
    ".tex": as_latex,
}
