"""Join results of any evaluations into one table, and mark the differences that are significant.

    python -m eval.compare PATH [PATH ...] [--by FIELD,FIELD] [-o FILE.txt|.md|.csv|.html|.tex]

PATH is a run folder, a folder of results, or a .jsonl file of rows, of eval.probe (and training's own probes),
eval.ruler, eval.passkey, eval.lines, eval.perplexity, eval.methods, eval.heatmap or eval.harness:

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
from pathlib import Path

from eval.compare.records import read_records
from eval.compare.table import arrange
from eval.compare.writing import WRITERS, as_text
from lab.command import Syntax, Words, run, start
from lab.errors import ConfigError
from lab.files import write_atomic, writing


def join(paths: Sequence[Path], by: Sequence[str], output: Path | None) -> str:
    """Read all results, and return the table, or where it was written.

    Raises: LabError.
    """
    records, others = read_records(paths)
    grid = arrange(records, by)
    left = [f"{others:,} rows of other measurements are left out."] if others else []
    if output is None:
        return "\n".join([as_text(grid), *left])
    with writing(f"-o {output}", "file"):
        write_atomic(output, (WRITERS[output.suffix](grid).rstrip("\n") + "\n").encode())
    return "\n".join([*left, f"{len(grid.cells):,} results in {grid.cells.line.nunique():,} lines written to {output}"])


def read_words(words: Words) -> tuple[list[Path], list[str], Path | None]:
    """Read the command line.

    Raises: ConfigError with a line for every fault.
    """
    given, place = words.settings, words.options.o
    faults = [f"--{name}={value}: unknown setting; use --by" for name, value in given.items() if name != "by"]
    by = [name.strip() for name in str(given["by"]).split(",")] if "by" in given else []
    if len(set(by)) < len(by):
        faults.append(f"--by={given['by']}: a field is given twice; keep one of them")
    if place is not None and Path(place).suffix not in WRITERS:
        faults.append(f"-o {place}: must end in {', '.join(WRITERS)}; name the file of the table")
    if not words.places:
        faults.append("PATH: must be set; give a run folder, a folder of results, or a .jsonl file, before the options")
    if faults:
        raise ConfigError(*faults)
    return [Path(word) for word in words.places], by, Path(place) if place else None


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    syntax = Syntax(places=None, values=("-o",))
    return run(__doc__, arguments, lambda words: join(*read_words(words)), syntax=syntax)


if __name__ == "__main__":
    start(main)
