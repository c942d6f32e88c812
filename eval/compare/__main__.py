"""Join results of any evaluations into one table, and mark the differences that are significant.

    python -m eval.compare PATH [PATH ...] [--by FIELD,FIELD] [-o FOLDER|FILE.txt|.md|.csv|.tex]

PATH is a run folder, a folder of results, or a .jsonl file of rows, of eval.probe (and training's own probes),
eval.ruler, eval.passkey, eval.lines, eval.perplexity or eval.harness:

    python -m eval.compare runs/tiny_2k runs/tiny_2k_string
    python -m eval.compare runs/tiny_2k/eval --by method -o table.md
    python -m eval.compare runs/tiny_2k --by checkpoint -o growth.csv
    python -m eval.compare runs/*/eval/perplexity.jsonl --by length
    python -m eval.compare runs/windows-* --by window -o windows.tex

Each line is a task at a length, each column a model with its position methods, or what --by names: model, checkpoint,
method, precision, length, task, any column of the rows, or any setting of the runs' config.yaml (window, or in full
data.window). Results of other protocols, texts, numbers of needles or seeds never share a line; with --by a setting,
the texts of each run's own corpus do. A probe's summary gives lines of its own: effective length, reach, f at each.

Runs that differ only in run.seed are one column: the mean of each score over the seeds, with 95% limits by the t
distribution; --by model shows each run. Every cell has the number of tests or of seeds. Differences to the first column
are tested, exactly and on the same tests where every test is recorded; eval/compare/differences.py has the rules, and
the table names the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from eval.compare.records import read_records
from eval.compare.table import COLUMNS, WIDER, Grid, arrange
from eval.engine.command import NO_MODEL, NO_PICTURE, Form, Request, run
from eval.engine.records import unpacked
from eval.engine.rows import Found, file_in
from lab.command import start
from lab.errors import ConfigError
from lab.files import write_atomic, writing
from lab.schema import Section

LEVEL = 0.05
FORMS = {"share": ".1f", "percent": ".1f", "tokens": ",.1f", "pairs": ",.0f"}  # of units; of all others .4g
KNOWN = ["n", "seeds", "score", "low", "high", "below", "unit", "best", "test", "p", "p_adjusted"]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Section):
    """Options of this command."""

    by: tuple[str, ...] = ()
    """Fields, with commas between them, that columns are: of the rows, or settings of the runs; left out, model,
    checkpoint and method."""

    def rules(self) -> list[str]:
        """Refuse a field given twice."""
        twice = len(set(self.by)) < len(self.by)
        return [f"by={','.join(self.by)}: a field is given twice; keep one of them"] if twice else []


def join(request: Request) -> Found:
    """Read all results, and return the table, or where it was written.

    Raises: LabError.
    """
    output = None if request.folder is None else file_in(request.folder, "compare.txt")
    if output is not None and output.suffix not in WRITERS:
        raise ConfigError(f"-o {output}: must end in {', '.join(WRITERS)}, or be a folder; name the file of the table")
    with unpacked(request.places) as places:
        records, others = read_records(places)
        grid = arrange(records, request.options.by)
    left = [f"{others:,} rows of other measurements are left out."] if others else []
    rows = rows_of(grid)
    if output is None:
        return Found("\n".join([as_text(grid), *left]), rows)
    with writing(f"-o {output}", "file"):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(output, (WRITERS[output.suffix](grid).rstrip("\n") + "\n").encode())
    return Found(
        "\n".join([*left, f"{len(grid.cells):,} results in {grid.cells.line.nunique():,} lines"]), rows, output
    )


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


def as_latex(grid: Grid) -> str:
    """Write a table of LaTeX's booktabs, the best of each line in bold, the legend as comments."""
    table = spread(grid)
    bold = (spread(grid, "^{}") != table).replace({True: "font-weight: bold;", False: ""})
    style = table.style.format(escape="latex").format_index(escape="latex", axis=0)
    style = style.format_index(escape="latex", axis=1).apply(lambda _: bold, axis=None)
    text: str = style.to_latex(convert_css=True, hrules=True)
    return text + "".join(f"% {line}\n" for line in legend(grid))


def known(grid: Grid) -> pd.DataFrame:
    """Lay out all that is known of each result."""
    protocol = [" ".join(f"{name}={json.dumps(value)}" for name, value in alike.items()) for alike in grid.cells.alike]
    names = list(dict.fromkeys(["evaluation", "task", "length", *COLUMNS, *WIDER, *grid.by, "protocol", *KNOWN]))
    return grid.cells.assign(protocol=protocol)[names]


def rows_of(grid: Grid) -> list[dict[str, Any]]:
    """List the results as they are in the CSV, without what is unknown."""
    return [{name: value for name, value in row.items() if pd.notna(value)} for row in known(grid).to_dict("records")]


WRITERS: dict[str, Callable[[Grid], str]] = {
    ".txt": as_text,
    ".md": as_markdown,
    ".csv": lambda grid: str(known(grid).to_csv(index=False)),
    ".tex": as_latex,
}


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    missing = "PATH: must be set; give a run folder, a folder of results, or a .jsonl file, before the options"
    refused = {**NO_MODEL, "--plot": NO_PICTURE}
    form = Form(options=CompareOptions, refused=refused, each=False, file=True, missing=missing)
    return run("eval.compare", __doc__, form, join, arguments)


if __name__ == "__main__":
    start(main)
