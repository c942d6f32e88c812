"""Run a table or figure of a paper, and print ours beside theirs with differences.

    probe-lab papers                                    the list: state, and what is missing here
    probe-lab papers string/table1                      at full size
    probe-lab papers string/table1 --mini               the same quantities in miniature, on a CPU in minutes
    probe-lab papers string/table1 --dry_run            the commands, and what is missing

PAPER is string, dca, longrecipe, entropy_abf or anchor. A table is eval/papers/PAPER/TABLE.yaml: what is trained and
evaluated, how its rows are read, the published numbers with their source; docs/papers.md lists all. What is missing is
trained through probe-lab sweep and evaluated by the commands that --dry_run prints. What is finished is skipped, so
that the same command continues after Ctrl-C (exit status 75) or a crash. Where a row fails (exit status 1), a line says
why, and the others are printed. Models and data are those of eval/papers/needs.yaml.

Writes table.json, an object for each cell with both numbers, to runs/papers/PAPER-TABLE, with --mini to
PAPER-TABLE-mini, or to FOLDER of -o. --json prints table.json instead. The commands print to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eval.engine.rows import pivot, to_text
from eval.papers.running import Row, compare, dry_run, run_table
from eval.papers.table import Table, names, read_table
from lab.command import CONTINUES, Syntax, Words, run, show, start
from lab.errors import ConfigError
from lab.files import write_json, writing

RUNS = Path("runs/papers")
RESULT = "table.json"
SYNTAX = Syntax(flags=("--list", "--mini", "--json", "--dry_run"), values=("-o",))


def work(words: Words) -> str | int:
    """Run what the command line asks for, and return what to print, or the exit status once it is printed."""
    options = words.options
    if words.settings:
        raise ConfigError(*(f"--{name}: unknown option; see --help" for name in words.settings))
    if not words.places:
        return listing()
    name = words.places[0]
    table = read_table(name, mini=options.mini)
    folder = Path(options.o) if options.o else own_folder(name, mini=options.mini)
    if options.dry_run:
        return "\n".join(dry_run(table, folder))
    rows, failures = run_table(table, folder)
    cells = compare(table, rows, mini=options.mini)
    with writing(f"-o {folder}", "folder"):
        write_json(folder / RESULT, cells)
    text = f"{name}: {table_text(table, cells, mini=options.mini)}\nwritten to {folder / RESULT}"
    show(json.dumps(cells, indent=1) if options.json else text)
    for line in failures:
        show(line, error=True)
    return 1 if failures else 0


def own_folder(name: str, *, mini: bool) -> Path:
    """Name the folder of a table's results."""
    return RUNS / f"{name.replace('/', '-')}{'-mini' * mini}"


def table_text(table: Table, cells: Sequence[Row], *, mini: bool) -> str:
    """Format the cells, rows and columns as in the paper: ours, theirs in brackets, the difference."""
    scale = "in miniature; the paper's numbers are of another scale" if mini else "at full size"
    head = f"{table.title}\n{table.source}; {scale}\nours [theirs]{'' if mini else ' difference'}"
    if not cells:
        return f"{head}\nno results"
    text = to_text(pivot([{**cell, "cell": in_words(cell)} for cell in cells], "row", "column", "cell"))
    return "\n".join([head, "", text, *([table.mini.note] if mini else [])])


def in_words(cell: Row) -> str:
    """Write a cell.

    Example:
        >>> in_words({"ours": 97.0, "theirs": 97.2, "difference": -0.2})
        '97 [97.2] -0.2'
        >>> in_words({"ours": None, "theirs": "OOM", "difference": None})
        '- [OOM]'
    """
    ours = "-" if cell["ours"] is None else f"{cell['ours']:.4g}"
    theirs = cell["theirs"]
    shown = "" if theirs is None else f" [{theirs if isinstance(theirs, str) else format(theirs, 'g')}]"
    return f"{ours}{shown}" + ("" if cell["difference"] is None else f" {cell['difference']:+.3g}")


def listing() -> str:
    """List every table with the largest size at which it has been run here, and what it needs that is not here."""
    rows = []
    for name in names():
        table = read_table(name)
        sizes = {"full": False, "mini": True}
        done = [size for size, mini in sizes.items() if (own_folder(name, mini=mini) / RESULT).exists()]
        lacks = ", ".join(line.partition(":")[0] for line in table.missing) or "nothing"
        state = [*done, "not run"][0]
        rows.append({"table": name, "state": state, "what": table.title, "missing here": lacks})
    return to_text(rows)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(__doc__, [*arguments] or ["--list"], work, syntax=SYNTAX, stopped=CONTINUES)


if __name__ == "__main__":
    start(main)
