"""The table of eval.compare as text: headings, scores with limits, and what their marks mean."""

from typing import Any

import pandas as pd

from eval.engine.seeds import LEVEL, POWER
from lab.runs.arms import FEWEST

FORMS = {"share": ".1f", "percent": ".1f", "tokens": ",.1f", "pairs": ",.0f"}  # of units; of all others .4g


def format_heading(value: Any) -> str:
    """Write a value of a heading."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if isinstance(value, int | float) and value == value // 1 else str(value)


def format_cell(cell: Any) -> str:
    """Write a score with its limits, shares in percent: 50.0 (25.0 to 75.0), n=8; * is significant, ? not tested."""
    low = format_number(cell.low, cell.unit)
    high = format_number(cell.high, cell.unit)
    text = cell.range or str(format_number(cell.score, cell.unit))
    if low and pd.notna(cell.score):
        if high:
            text += f" ({low} to {high})"
        elif cell.unit == "tokens":
            text += f" ({low} or more)"
    if cell.censored == "below" and cell.seeds == 1 and cell.high != cell.below:  # the tests show no number
        text += f" to {high}" if high else " or more"
    if cell.seeds > 1:
        text += f", {cell.seeds} seeds"
    elif pd.notna(cell.n):
        text += f", n={cell.n:,.0f}"
    if pd.notna(cell.seeds_needed):
        text += f" ({cell.seeds_needed:.0f} needed)"
    if cell.n_censored and cell.seeds > 1:
        text += f", {cell.n_censored} censored"
    if cell.dips:  # distances nearer than reach that fail
        text += f", {cell.dips} with a dip" if cell.seeds > 1 else ", a dip"
    # nan, of a result without a test, is not <= LEVEL.
    if cell.p_adjusted <= LEVEL:
        text += "*"
    elif cell.compared and not isinstance(cell.test, str):
        text += "?"
    return text


def format_number(value: Any, unit: str) -> str | None:
    """Write a score or a limit of a unit, without the .0 of tokens; None if it is not known."""
    if pd.isna(value):
        return None
    if unit == "share":
        value = 100 * value
    text = f"{value:{FORMS.get(unit, '.4g')}}"
    return text.removesuffix(".0") if unit == "tokens" else text


def to_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Spread the cells as text; - is no result."""
    texts = cells.assign(text=[format_cell(cell) for cell in cells.itertuples()])
    table = texts.pivot(index="line", columns="column", values="text").loc[cells.line.unique()]
    return table[cells.sort_values("number").column.unique()].fillna("-").rename_axis(index=None, columns=None)


def describe_marks(cells: pd.DataFrame, older: int) -> list[str]:
    """Explain the marks and the tests, and count the results that were omitted."""
    tests = cells.test.value_counts()
    untested = int((cells.compared & cells.test.isna()).sum())
    first = cells.column[cells.number == 0].iloc[0]
    notes = ["Shares in percent, with limits where they are known."]
    if (cells.seeds > 1).any():
        notes.append(
            "Of several seeds the mean, with 95% limits by the t distribution, for shares with a seed more at 0 and at "
            "1; of censored seeds, < the first value tested or + the last, the least and the most."
        )
    if len(tests):
        named = ", ".join([f"{name} ({count})" for name, count in tests.items()])
        total = f"p adjusted for {tests.sum()} comparisons (Holm)"
        notes.append(f"* differs from {first} at {LEVEL:g}: {named}; {total}.")
    if cells.seeds_needed.notna().any():
        notes.append(
            f"(k needed): seeds with which a t test at {LEVEL:g} finds the difference to {first} in {POWER:.0%} of "
            "cases if size and spread are those measured; in pairs where seeds are the same."
        )
    if untested:
        rule = f"fewer than {FEWEST} seeds, or neither outcomes of the same tests nor shares of tests are recorded"
        notes.append(f"? no test ({untested}): {rule}.")
    if older:
        notes.append(f"{older:,} results of older checkpoints are omitted; --by=checkpoint shows them.")
    return notes
