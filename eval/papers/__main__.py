"""Run a table or figure of a paper, and print ours beside theirs with differences.

    python -m eval.papers                               the list: state, and what is missing here
    python -m eval.papers string/table1                 at full size
    python -m eval.papers string/table1 --mini          the same quantities in miniature, on a CPU in minutes
    python -m eval.papers string/table1 --dry_run       the commands, and what is missing
    python -m eval.papers --write                       docs/papers.md and docs/data.md from the files

PAPER is string, dca, longrecipe, entropy_abf or anchor. A table is eval/papers/PAPER/TABLE.yaml: what is trained and
evaluated, how its rows are read, the published numbers with their source; docs/papers.md lists all. What is missing is
trained through lab.sweep and evaluated by the commands that --dry_run prints; what is finished is skipped, so that the
same command continues after Ctrl-C (exit status 75) or a crash. Models and data are those of eval/papers/needs.yaml.

Writes table.json and table.csv, a line for each cell with both numbers, to runs/papers/PAPER-TABLE, with --mini to
PAPER-TABLE-mini, or to FOLDER of -o. --json prints table.json instead. The commands print to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from eval.engine.rows import to_text
from eval.papers.comparing import compare, table_text
from eval.papers.running import Sized, dry_run, missing, run_table
from eval.papers.table import HOME, PAPERS, names, needs, read_table
from lab.command import CONTINUES, Syntax, Words, run, start
from lab.errors import ConfigError
from lab.files import write_atomic, write_json, writing

RUNS, RESULT = Path("runs/papers"), "table.json"
DOCS = HOME.parents[1] / "docs"
MARK = "<!-- Everything below is written by python -m eval.papers --write -->\n"
SYNTAX = Syntax(flags=("--list", "--mini", "--json", "--dry_run", "--write"), values=("-o",))


def work(words: Words) -> str:
    """Read the command line, run what it asks for, and return what to print.

    Raises: LabError; KeyboardInterrupt.
    """
    options = words.options
    if words.settings:
        raise ConfigError(*(f"--{name}: unknown option; see --help" for name in words.settings))
    if not words.places:
        return write_docs() if options.write else listing()
    sized = Sized(words.places[0], read_table(words.places[0]), options.mini)
    folder = Path(options.o) if options.o else own_folder(sized.name, mini=options.mini)
    if options.dry_run:
        return "\n".join(dry_run(sized, folder))
    cells = compare(sized, run_table(sized, folder))
    with writing(f"-o {folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RESULT, cells)
        pd.DataFrame(cells).to_csv(folder / "table.csv", index=False)
    return json.dumps(cells, indent=1) if options.json else f"{table_text(sized, cells)}\nwritten to {folder / RESULT}"


def own_folder(name: str, *, mini: bool) -> Path:
    """Name the folder of a table's results."""
    return RUNS / f"{name.replace('/', '-')}{'-mini' * mini}"


def state(name: str) -> str:
    """Return the largest size at which a table has been run here."""
    done = [size for size in ("full", "mini") if (own_folder(name, mini=size == "mini") / RESULT).exists()]
    return done[0] if done else "not run"


def listing() -> str:
    """List every table with its state and what it needs that is not here."""
    rows = []
    for name in names():
        sized = Sized(name, read_table(name), mini=False)
        lacks = ", ".join(line.partition(":")[0] for line in missing(sized))
        rows.append(
            {"table": name, "state": state(name), "what": sized.table.title, "missing here": lacks or "nothing"}
        )
    return to_text(rows)


def write_docs() -> str:
    """Write the pages below their marks, and return their names."""
    for page, write in pages().items():
        head = (DOCS / page).read_text(encoding="utf-8").partition(MARK)[0]
        write_atomic(DOCS / page, (head + MARK + write()).encode())
    return "written: " + ", ".join(str(DOCS / page) for page in pages())


def pages() -> dict[str, Callable[[], str]]:
    """Return what writes a page below its mark."""
    return {"papers.md": papers, "data.md": data}


def papers() -> str:
    """Write a section for each paper: its tables, and what has no command."""
    parts = []
    for paper, (arxiv, title) in PAPERS.items():
        lines = []
        for name in (name for name in names() if name.startswith(f"{paper}/")):
            sized = Sized(name, read_table(name), mini=False)
            table, needed = sized.table, ", ".join(sized.needed) or "nothing"
            seconds = "not run" if table.mini.seconds is None else f"{table.mini.seconds:.0f} s"
            lines.append(f"| {name} | {table.title} | {needed} | {table.hours} | {table.gpus} | {seconds} |")
        left_out = {name: why for name, why in needs().left_out.items() if name.startswith(f"{paper}/")}
        head = ["| table | what | needs, beside synthetic data | GPU-hours: training, evaluation | GPUs | mini |"]
        rows = [*head, "|---|---|---|---|---|---|", *lines, "", "| without a command | why |", "|---|---|"]
        parts.append(
            "\n".join([f"\n## {title} (arXiv:{arxiv})\n", *rows, *(f"| {n} | {w} |" for n, w in left_out.items())])
        )
    return "\n".join(parts) + "\n"


def data() -> str:
    """Write the tables of data sets and models."""
    fields = ("source", "licence", "size", "fields", "read_by")
    rows = ["| name | from | licence | size | fields | read by |", "|---|---|---|---|---|---|"]
    for name, need in needs().data.items():
        where = "" if need.path is None else f" (`{need.path}`)"
        rows.append(f"| {name}{where} | " + " | ".join(getattr(need, field) for field in fields) + " |")
    rows += ["", "| model | path | from |", "|---|---|---|"]
    rows += [f"| {name} | `{need.path}` | {need.source} |" for name, need in needs().models.items()]
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(__doc__, [*arguments] or ["--list"], work, syntax=SYNTAX, stopped=CONTINUES)


if __name__ == "__main__":
    start(main)
