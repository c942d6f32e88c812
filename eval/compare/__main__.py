"""Join results of any evaluations into one table, and mark the differences that are significant.

    python -m eval.compare PATH [PATH ...] [--by FIELD,FIELD] [-o FOLDER|FILE.txt|.md|.csv|.html|.tex]

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

from collections.abc import Sequence
from dataclasses import dataclass

from eval.compare.records import read_records
from eval.compare.table import arrange
from eval.compare.writing import WRITERS, as_text, rows_of
from eval.engine.command import NO_MODEL, NO_PICTURE, Form, Request, run
from eval.engine.records import unpacked
from eval.engine.rows import Found, file_in
from lab.command import start
from lab.errors import ConfigError
from lab.files import write_atomic, writing
from lab.schema import Section


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


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    missing = "PATH: must be set; give a run folder, a folder of results, or a .jsonl file, before the options"
    refused = {**NO_MODEL, "--plot": NO_PICTURE}
    form = Form(options=CompareOptions, refused=refused, each=False, file=True, missing=missing)
    return run("eval.compare", __doc__, form, join, arguments)


if __name__ == "__main__":
    start(main)
