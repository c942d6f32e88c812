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

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from textwrap import shorten
from typing import Any

from eval.engine.command import printing_to_stderr
from eval.engine.rows import Finished, pivot, to_text
from eval.papers.table import Column, Table, expand, names, read_table
from lab import errors, files, jobs
from lab.command import CONTINUES, STOPPED, Syntax, Words, run, show, start
from lab.rows import Row
from lab.runs.folder import RunFolder
from lab.sweep.planning import PlannedRun, plan, planned_run
from lab.yaml import flatten

RUNS = Path("runs/papers")
RESULT = "table.json"
SYNTAX = Syntax(flags=("--list", "--mini", "--json", "--dry_run"), values=("-o",))
WIDEST = 70  # characters of a title in the list
FINISHED = "finished.jsonl"  # in a table's folder: the evaluations that have run
VARYING = ("commit", "hardware", "cases")  # fields of a result that is the same measured again


@dataclass(frozen=True)
class Measured:
    """One row on one model: its values, of which `out` is its folder, and the commands, each as words."""

    row: str
    values: Mapping[str, Any]
    commands: tuple[tuple[str, ...], ...]


def measured_rows(table: Table, folder: Path) -> Iterator[Measured]:
    """List every row on each of its models.

    Raises: ConfigError for a missing model that runs start from, a placeholder without a value, or a row that no run of
    the sweeps is of.
    """
    runs = [run for file in table.sweep for run in plan(Path(file), {})]
    for row, words in table.rows.items():
        for model in models(table, row, words, runs):
            values = {**table.values, **words, **model}
            plain = [expand(command, {**values, "out": "{out}"}) for command in table.evaluate]
            digest = hashlib.sha256("\n".join(plain).encode()).hexdigest()[:8]
            out = folder / f"{re.sub('[^a-z0-9]+', '-', row.lower()).strip('-')}-{digest}"
            commands = tuple(tuple(shlex.split(command.replace("{out}", str(out)))) for command in plain)
            yield Measured(row, {**values, "out": out}, commands)


def models(table: Table, row: str, values: Mapping[str, Any], runs: Sequence[PlannedRun]) -> list[Row]:
    """Find the runs that belong to a row, as values of `model`; one without a value for rows that name theirs."""
    if "run" not in values:
        return [{}]
    wanted = {key: str(value) for key, value in flatten(values["run"]).items()}
    texts = [{key: str(value) for key, value in flatten(run.experiment.to_dict()).items()} for run in runs]
    named = [{"model": str(run.path)} for run, text in zip(runs, texts, strict=True) if wanted.items() <= text.items()]
    if not named:
        raise errors.ConfigError(f"rows.{row}.run={values['run']}: no run of {', '.join(table.sweep)} is so")
    return named


def list_training(table: Table) -> Iterator[Sequence[str]]:
    yield from (shlex.split(need.train) for need in table.requirements.values() if need.train)
    yield from (["lab.sweep", file] for file in table.sweep)


def run_table(table: Table, folder: Path) -> tuple[list[Measured], list[str]]:
    """Run the commands that are not finished; return the rows that are, on each of their models, and the failures.

    Shared runs, sweeps and each row's commands are child processes, one after another. A failure is
    a line. Where training fails nothing is evaluated; where a row fails the others go on.
    """
    if table.missing_files:
        raise errors.DataError("\n".join(table.missing_files))
    finished = Finished(folder / FINISHED, {}, ("command",))
    with printing_to_stderr():
        untrained = (words for words in list_training(table) if not is_trained(words))
        failures = list(islice(filter(None, map(fault, untrained)), 1))
        rows: list[Measured] = []
        with suppress(errors.LabError) if failures else nullcontext():  # rows may start from what is not trained
            rows += measured_rows(table, folder)
        for one in [] if failures else rows:
            for words in one.commands:
                command = {"command": shlex.join(words)}
                if finished.find(command):
                    continue
                if why := fault(words, folder / f"{one.values['out'].name}.log"):
                    failures.append(f"{one.row}: {why}")
                    break
                finished.append([command])
    ended = {row.get("command") for row in finished}
    done = [one for one in rows if one.commands and ended.issuperset(map(shlex.join, one.commands))]
    return (done if failures else rows), failures


def fault(words: Sequence[str], log: Path | None = None) -> str | None:
    """Run a command, its output added to a log if one is given, and return why it failed, in a line."""
    text = format_command(words)
    show(text if log is None else f"{text}   output: {log}")
    job = jobs.Job(text, [sys.executable, "-m", *words], log)
    status = jobs.run_jobs([job])
    if status == STOPPED:
        raise KeyboardInterrupt
    return f"{text}: ended with status {status}: {job.last_line}" if status else None


def format_command(words: Sequence[str]) -> str:
    return f"probe-lab {shlex.join(words).partition('.')[2]}"


def is_trained(words: Sequence[str]) -> bool:
    if words[0] == "lab.sweep":
        return all(jobs.is_finished(run.experiment) for run in plan(Path(words[1]), {}))
    return words[0] == "lab.fit" and jobs.is_finished(planned_run(words, {}, {}).experiment)


def dry_run(table: Table, folder: Path) -> Iterator[str]:
    """List what would be run, without looking whether it has been, and what is missing."""
    yield from table.missing_files
    try:
        of_rows = (words for one in measured_rows(table, folder) for words in one.commands)
        yield from (format_command(words) for words in chain(list_training(table), of_rows))
    except errors.LabError as error:  # a row's model is not known yet: its commands with what is to be filled in
        yield str(error)
        yield from (format_command(shlex.split(command)) for command in table.evaluate)


def compare(table: Table, measured: Sequence[Measured], *, mini: bool) -> list[Row]:
    """List every cell: ours over all runs of the row, theirs, and the difference where both are numbers."""
    cells = []
    for row in dict.fromkeys([*(one.row for one in measured), *(() if mini else table.published)]):
        for name, column in table.columns.items():
            values = [x for one in measured if one.row == row and (x := number(column, one)) is not None]
            theirs = table.published.get(row, {}).get(name)
            if values or theirs is not None:
                ours = sum(values) / len(values) if values else None
                both = ours is not None and isinstance(theirs, int | float) and not mini
                cell = {"row": row, "column": name, "ours": ours, "runs": len(values), "theirs": theirs}
                difference = ours - theirs if both else None  # type: ignore[operator]
                cells.append({**cell, "difference": difference, "scale": "mini" if mini else "full"})
    return cells


def number(column: Column, one: Measured) -> float | None:
    """Read a column's number from a row's results, the newest of those measured twice; None where it has none."""
    place = (
        Path(expand(column.file, one.values)) if column.file.startswith("{model}") else one.values["out"] / column.file
    )
    newest: dict[str, Row] = {}
    for path in sorted(place.parent.glob(place.name)):
        whole = path.suffix == ".json"
        for row in [json.loads(path.read_text("utf-8"))] if whole else RunFolder(path.parent).read(path.name):
            named = {k: v for k, v in row.items() if not isinstance(v, float | dict | list) and k not in VARYING}
            newest[json.dumps(named)] = row
    chosen = (row.get(column.field) for row in newest.values() if fits(row, column.where, one.values))
    values = [float(value) * column.times for value in chosen if isinstance(value, int | float)]
    if not values:
        return None
    return {"first": values[0], "last": values[-1], "mean": sum(values) / len(values)}[column.pick]


def fits(row: Row, where: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a result agrees with a column's conditions, each a pattern or a list of them.

    Example:
        >>> fits({"task": "niah_single_1", "length": 192}, {"task": "niah_*", "length": "{long}"}, {"long": 192})
        True
    """
    for name, wanted in where.items():
        patterns = [expand(str(pattern), values) for pattern in (wanted if isinstance(wanted, list) else [wanted])]
        if not any(fnmatchcase(str(row.get(name)), pattern) for pattern in patterns):
            return False
    return True


def work(words: Words) -> str | int:
    """Run what the command line asks for, and return what to print, or the exit status once it is printed."""
    options = words.options
    if words.settings:
        raise errors.ConfigError(*(f"--{name}: unknown option; see --help" for name in words.settings))
    if not words.places:
        return listing()
    name = words.places[0]
    table = read_table(name, mini=options.mini)
    folder = Path(options.o) if options.o else result_folder(name, mini=options.mini)
    if options.dry_run:
        return "\n".join(dry_run(table, folder))
    rows, failures = run_table(table, folder)
    cells = compare(table, rows, mini=options.mini)
    with files.writing(f"-o {folder}", "folder"):
        files.write_json(folder / RESULT, cells)
    text = f"{name}: {table_text(table, cells, mini=options.mini)}\nwritten to {folder / RESULT}"
    show(json.dumps(cells, indent=1) if options.json else text)
    for line in failures:
        show(line, error=True)
    return 1 if failures else 0


def result_folder(name: str, *, mini: bool) -> Path:
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
    published = "" if theirs is None else f" [{theirs if isinstance(theirs, str) else format(theirs, 'g')}]"
    return f"{ours}{published}" + ("" if cell["difference"] is None else f" {cell['difference']:+.3g}")


def listing() -> str:
    """List every table with the largest size at which it has been run here, and what it needs that is not here."""
    rows = []
    for name in names():
        table = read_table(name)
        sizes = {"full": False, "mini": True}
        done = [size for size, mini in sizes.items() if (result_folder(name, mini=mini) / RESULT).exists()]
        state = [*done, "not run"][0]
        what = shorten(table.title, WIDEST, placeholder=" ...")
        rows.append({"table": name, "state": state, "missing here": f"{len(table.missing_files)}", "what": what})
    return f"{to_text(rows)}\nprobe-lab papers TABLE --dry_run names what is missing here"


def main(arguments: Sequence[str]) -> int:
    return run(__doc__, [*arguments] or ["--list"], work, syntax=SYNTAX, stopped=CONTINUES)


if __name__ == "__main__":
    start(main)
