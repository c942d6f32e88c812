"""Runs the missing tests of a model's checkpoints, writes each when it is done, and summarizes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eval.engine.answers import Cell, Done, fill, run_tests
from eval.engine.cases import TextCase, Writer
from eval.engine.rows import Results, Row
from eval.engine.subject import Subject
from eval.ruler.metrics import summed
from eval.ruler.options import RulerOptions
from eval.ruler.results import Scores
from eval.ruler.sources import STANDIN, Sources
from eval.ruler.tasks import TASKS, VERSION, Task, least_budget, least_length, make_case, too_short
from lab.bars import Bar
from lab.data.tokenizer import check_ids
from lab.errors import ConfigError
from lab.loading import OpenedModel
from lab.train.environment import versions

PROTOCOL = "ruler"
ROWS, CASES = "ruler.jsonl", "ruler-cases"
SHORTEST = 4096  # RULER's first length
QUIET_S = 2.0  # before the bar of the first drawing shows
IDENTITY = (  # rows that agree in these are results of the same measurement
    *("protocol", "version", "model", "checkpoint", "weights", "method", "precision"),
    *("task", "length", "n", "seed", "answer_budget", "source"),
)


@dataclass(frozen=True)
class Bench:
    """Shared by all tests of a call."""

    options: RulerOptions
    writer: Writer
    sources: Sources
    lengths: list[int]
    budgets: dict[Task, int]

    def case(self, task: Task, length: int, index: int) -> TextCase:
        """Draw one test."""
        seed = self.options.seed
        return make_case(self.writer, self.sources, task, length, seed, index, budget=self.budgets[task])

    def standins(self, task: Task) -> list[str]:
        """Name the sources of a task that made-up text stands in for."""
        return [task.source] if task.source and self.sources.names[task.source] == STANDIN else []


def prepare(subject: Subject, options: RulerOptions) -> Bench:
    """Read the sources, choose the lengths, and make sure that all tests can be drawn before any of them runs.

    Raises: LabError; ConfigError with a line for every length that is too short for a task.
    """
    writer, sources = (
        Writer(subject.tokenizer),
        Sources.read(options.haystack, options.squad, options.hotpotqa, options.words),
    )
    budgets = answer_budgets(writer, sources, options)
    lengths, shortest = sorted(options.lengths or window_lengths(subject.model.train_len)), 0
    while shortest < lengths[0]:  # again where the first length was raised, as tasks differ by length
        shortest = lengths[0]
        faults, least = short_tasks(writer, sources, options, budgets, shortest)
        if options.lengths is not None and faults:
            raise ConfigError(*faults)
        if least > shortest:
            lengths = [1 << (least - 1).bit_length()]
    bench = Bench(options, writer, sources, lengths, budgets)
    for task in options.chosen:
        for length in lengths:
            check_ids(bench.case(task, length, 0).prompt_ids, subject.vocab_size)
    return bench


def answer_budgets(writer: Writer, sources: Sources, options: RulerOptions) -> dict[Task, int]:
    """Choose the answer budgets: as requested, or RULER's; more where an answer takes more.

    Raises: ConfigError with a line for every task whose answers do not fit in the requested budget.
    """
    least = {task: least_budget(writer, sources, task) for task in options.chosen}
    if options.answer_budget is None:
        return {task: max(task.budget, tokens) for task, tokens in least.items()}
    faults = [
        f"--answer_budget={options.answer_budget}: an answer to {task.name} takes {tokens} tokens; raise it"
        for task, tokens in least.items()
        if tokens > options.answer_budget
    ]
    if faults:
        raise ConfigError(*faults)
    return dict.fromkeys(least, options.answer_budget)


def short_tasks(
    writer: Writer, sources: Sources, options: RulerOptions, budgets: dict[Task, int], length: int
) -> tuple[list[str], int]:
    """List the tasks that a length is too short for, and give the least that is not, over all tests."""
    faults, most = [], 0
    for task in Bar(options.chosen, desc="drawing", leave=False, delay=QUIET_S):
        least = least_length(writer, sources, task, length, options.seed, options.tests, budgets[task])
        if least > length:
            faults.append(str(too_short(task, length, budgets[task], least)))
        most = max(most, least)
    return faults, most


def window_lengths(train_len: int | None) -> list[int]:
    """List RULER's lengths up to the training window, or the first power of two that a smaller window holds.

    Example:
        >>> window_lengths(16384), window_lengths(2048), window_lengths(192)
        ([4096, 8192, 16384], [2048], [128])
    """
    longest = max(1, train_len or SHORTEST).bit_length() - 1
    return [1 << power for power in range(min(SHORTEST.bit_length() - 1, longest), longest + 1)]


def rows_in(folder: Path) -> Results:
    """Read the rows that are known.

    Raises: LabError where the file is broken or cannot be written.
    """
    return Results(folder / ROWS, IDENTITY)


def measure_subject(subject: Subject, bench: Bench, cells: Results) -> Scores:
    """Run all tasks at all lengths, but for those whose rows are there."""
    wanted = [
        Cell(describe(subject, bench, task, length), bench.options.tests, f"{task.name} at {length:,}")
        for length in bench.lengths
        for task in bench.options.chosen
    ]
    rows = fill(cells, wanted, partial(run_cell, subject, bench, cells), kind=PROTOCOL)
    return {(row["task"], row["length"]): row["score"] for row in rows}


def describe(subject: Subject, bench: Bench, task: Task, length: int) -> dict[str, Any]:
    """Describe what a row measures, on what, and with what."""
    return {
        **subject.row,
        "protocol": PROTOCOL,
        "version": VERSION,
        "task": task.name,
        "category": task.category,
        "length": length,
        "n": bench.options.tests,
        "seed": bench.options.seed,
        "answer_budget": bench.budgets[task],
        "source": bench.sources.names[task.source] if task.source else None,
        "standins": bench.standins(task),
        "versions": versions(),
    }


def run_cell(subject: Subject, bench: Bench, cells: Results, row: Row, done: Done) -> Row:
    """Run the unfinished tests of one task at one length, and write them.

    Raises: LabError.
    """
    task, length, name = TASKS[row["task"]], row["length"], row["checkpoint"] or "model"
    file = f"{CASES}/{name}-{task.name}-{length}-{cells.digest(row)}.jsonl"
    outcome = run_tests(
        subject,
        partial(bench.case, task, length),
        bench.options.tests,
        task.judge,
        budget=bench.budgets[task],
        rows=bench.options.rows(length),
        started=cells.started(file),
        done=done,
    )
    return cells.add({**row, **summed(outcome)}, (file, outcome.records))


def standin_line(bench: Bench) -> list[str]:
    """List which texts were made up."""
    found = dict.fromkeys(name for task in bench.options.chosen for name in bench.standins(task))
    return [f"stand-ins: made-up text in place of {', '.join(found)}"] if found else []


def output_folder(about: OpenedModel, output: Path | None) -> Path:
    """Choose where results go."""
    return output or about.folder or Path("runs") / f"{PROTOCOL}-{about.name}"
