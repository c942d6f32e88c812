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
from collections.abc import Sequence
from pathlib import Path

from eval.papers.comparing import compare, table_text
from eval.papers.expanding import Sized
from eval.papers.listing import RESULT, listing, own_folder, write_docs
from eval.papers.running import dry_run, run_table
from eval.papers.table import read_table
from lab.command import CONTINUES, Syntax, Words, run, start
from lab.errors import ConfigError
from lab.files import write_json, writing

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
        write_csv(folder / "table.csv", cells)
    return json.dumps(cells, indent=1) if options.json else f"{table_text(sized, cells)}\nwritten to {folder / RESULT}"


def write_csv(path: Path, cells: Sequence[dict[str, object]]) -> None:
    """Write the cells as a CSV file."""
    import pandas as pd  # here, because --help and faults start sooner without it

    pd.DataFrame(cells).to_csv(path, index=False)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(__doc__, [*arguments] or ["--list"], work, syntax=SYNTAX, stopped=CONTINUES)


if __name__ == "__main__":
    start(main)
