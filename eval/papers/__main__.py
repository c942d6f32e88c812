"""Run a table or figure of a paper, and print our numbers next to the published ones with differences.

    probe-lab papers
    probe-lab papers string/table1
    probe-lab papers string/table1 --mini
    probe-lab papers string/table1 --dry_run

PAPER is string, dca, longrecipe, entropy_abf or anchor. A table is eval/papers/PAPER/TABLE.yaml: what is trained and
evaluated, how its rows are read, the published numbers with their source; docs/papers.md lists all. What is missing is
trained through probe-lab sweep and evaluated by the commands that --dry_run prints. What is finished is skipped, so
that the same command continues after Ctrl-C (exit status 75) or a crash. Where a row fails (exit status 1), a line says
why, and the others are printed. Models and data are those of eval/papers/needs.yaml.

Writes table.json, an object for each cell with both numbers.
"""

import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from eval.engine.text import to_text
from eval.papers.cells import Measured, compare_cells, table_text
from eval.papers.table import PaperTable, expand_placeholders, names, read_paper_table
from lab.config.settings import Settings
from lab.core import errors, files
from lab.core.command import CONTINUES, EXIT_STOPPED, Arguments, CommandSpec, run, show, start
from lab.core.types import Row
from lab.core.yaml import flatten
from lab.results.store import Store, short_hash
from lab.sweep.nodes import Node, is_trained, run_nodes
from lab.sweep.planning import PlannedRun, plan_command, plan_sweep

RUNS = Path("runs/papers")
RESULT = "table.json"
SPEC = CommandSpec(
    description=__doc__,
    flags={
        "--mini": "Measure the same quantities in miniature, on a CPU in minutes.",
        "--dry_run": "Print the commands, and what is missing.",
    },
    values={"-o": "Folder of table.json; default: runs/papers/PAPER-TABLE, with --mini PAPER-TABLE-mini."},
    needs_arguments=False,
    stopped=CONTINUES,
)


def measured_rows(table: PaperTable, folder: Path) -> Iterator[Measured]:
    """List every row on each of its models.

    Raises: ConfigError for a missing model that runs start from, a placeholder without a value, or a row that no run of
    the sweeps is of.
    """
    runs: list[PlannedRun] = []
    for file in table.sweep:
        runs += plan_sweep(Path(file), {})
    for row, placeholders in table.rows.items():
        for model in models(table, row, placeholders, runs):
            values = {**table.values, **placeholders, **model}
            # The folder's name follows from the commands, so they are expanded first without it.
            texts = [expand_placeholders(command, {**values, "out": "{out}"}) for command in table.evaluate]
            digest = short_hash("\n".join(texts))
            out = folder / f"{re.sub('[^a-z0-9]+', '-', row.lower()).strip('-')}-{digest}"
            commands = [tuple(shlex.split(text.replace("{out}", str(out)))) for text in texts]
            yield Measured(row, {**values, "out": out}, tuple(commands))


def models(table: PaperTable, row: str, values: Settings, runs: Sequence[PlannedRun]) -> list[Row]:
    """Find the runs that belong to a row, as values of `model`; a row that names its own model has no such value."""
    if "run" not in values:
        return [{}]
    wanted = to_texts(values["run"])
    matching = [{"model": str(run.path)} for run in runs if wanted <= to_texts(run.experiment.to_dict())]
    if not matching:
        rule = f"no run of {', '.join(table.sweep)} has these settings"
        raise errors.ConfigError(f"rows.{row}.run={values['run']}: {rule}; correct the row or the sweep")
    return matching


def to_texts(settings: Row) -> set[str]:
    """Return the settings as texts, as some values are lists, which no set takes."""
    return {f"{key}={value}" for key, value in flatten(settings).items()}


def list_training(table: PaperTable) -> Iterator[list[str]]:
    """List the commands that train what the table needs, in the order in which they depend on each other."""
    for need in table.requirements.values():
        if need.train:
            yield shlex.split(need.train)
    for file in table.sweep:
        yield ["lab.sweep", file]


def chain(
    row: str, commands: Iterable[Sequence[str]], is_done: Callable[[Sequence[str]], bool], log: Path | None = None
) -> list[Node]:
    """List the nodes of commands, each of which needs the one before it."""
    nodes: list[Node] = []
    for arguments in commands:
        nodes.append(
            Node(
                name=f"{row}{format_command(arguments)}",
                command=[sys.executable, "-P", "-m", *arguments],
                needs=nodes[-1:],
                is_finished=partial(is_done, arguments),
                output=log,
            )
        )
    return nodes


def run_table(table: PaperTable, folder: Path) -> tuple[list[Measured], list[str]]:
    """Run the commands that are not finished; return the rows that are, on each of their models, and the failures.

    Where training fails nothing is evaluated; where a row fails the others go on.

    Raises: KeyboardInterrupt if something is left to do.
    """
    if table.missing_files:
        raise errors.DataError("\n".join(table.missing_files))
    finished = Store(folder, "finished", {}, ("command",))  # the evaluations that have run

    def has_run(arguments: Sequence[str]) -> bool:
        return finished.find({"command": shlex.join(arguments)}) is not None

    def report(node: Node) -> None:
        if node.state == "running":
            show(f"{node.name}   output: {node.output}" if node.output else node.name, error=True)
        # Recorded after each evaluation, so that a later call begins with the one that failed.
        if node.state == "finished" and node.output and not node.is_finished():
            finished.append([{"command": shlex.join(node.command[3:])}])

    def run_plan(nodes: Sequence[Node]) -> list[str]:
        if run_nodes(nodes, report=report) == EXIT_STOPPED:
            raise KeyboardInterrupt
        return [f"{node.name}: ended with {node.reason}" for node in nodes if node.state == "failed"]

    if failures := run_plan(chain("", list_training(table), is_trained_by)):
        return [], failures
    # All commands are expanded before the first one runs, as a placeholder without a value is an error.
    rows = list(measured_rows(table, folder))
    plans = []
    for one in rows:
        out = one.values["out"]
        plans.append(chain(f"{one.row}: ", one.commands, has_run, out.with_name(f"{out.name}.log")))
    failures = run_plan(list(itertools.chain(*plans)))
    # A row that only reads a sweep has no command.
    return [
        row for row, nodes in zip(rows, plans, strict=True) if {node.state for node in nodes} <= {"finished"}
    ], failures


def format_command(arguments: Sequence[str]) -> str:
    return f"probe-lab {shlex.join(arguments).partition('.')[2]}"


def is_trained_by(arguments: Sequence[str]) -> bool:
    """Return whether a training command would find nothing left to do."""
    if arguments[0] == "lab.sweep":
        return all(is_trained(run.experiment) for run in plan_sweep(Path(arguments[1]), {}))
    return arguments[0] == "lab.fit" and is_trained(plan_command(arguments, {}, {}).experiment)


def describe_plan(table: PaperTable, folder: Path) -> Iterator[str]:
    """List the missing files and all commands, also those that have run."""
    yield from table.missing_files
    yield from map(format_command, list_training(table))
    try:
        for one in measured_rows(table, folder):
            yield from map(format_command, one.commands)
    except errors.LabError as error:
        # The model of a row is not known yet: print its commands with their placeholders.
        yield str(error)
        for command in table.evaluate:
            yield format_command(shlex.split(command))


def run_papers(args: Arguments) -> str | int:
    """Run what the command line asks for, and return what to print, or the exit status once it is printed."""
    options = args.options
    if args.settings:
        raise errors.ConfigError(*[f"--{name}: unknown option; see --help" for name in args.settings])
    if not args.positional:
        return list_tables()
    name = args.positional[0]
    table = read_paper_table(name, mini=options.mini)
    folder = Path(options.o or result_folder(name, mini=options.mini))
    if options.dry_run:
        return "\n".join(describe_plan(table, folder))
    rows, failures = run_table(table, folder)
    if rows:
        cells = compare_cells(table, rows, mini=options.mini)
        with files.writing(f"-o {folder}", "folder"):
            files.write_json(folder / RESULT, cells)
        show(f"{name}: {table_text(table, cells, mini=options.mini)}\nwritten to {folder / RESULT}")
    for line in failures:
        show(line, error=True)
    return 1 if failures else 0


def result_folder(name: str, *, mini: bool) -> Path:
    return RUNS / f"{name.replace('/', '-')}{'-mini' if mini else ''}"


def list_tables() -> str:
    """List every table with the number of missing files."""
    rows = []
    for name in names():
        table = read_paper_table(name)
        rows.append({"table": name, "missing here": f"{len(table.missing_files)}", "what": table.title})
    return f"{to_text(rows)}\nprobe-lab papers TABLE --dry_run names what is missing here"


main = partial(run, SPEC, run_papers)


if __name__ == "__main__":
    start(main)
