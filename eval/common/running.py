"""Runs the cells of a measurement that are not finished, and records each test once it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.common.cases import TextCase
from eval.common.results import Results, Row
from lab.bars import Bar
from lab.data.tokenizer import check_ids
from lab.probe.answering import Answers, answered

Done = Callable[[int], object]  # called with how many more tests are finished


class Cell(NamedTuple):
    """A cell: the fields that name its row, its number of tests, and its name in the progress bar."""

    row: Row
    tests: int
    name: str


def fill(
    cells: Results, wanted: Sequence[Cell], run: Callable[[Row, Done], Row], *, kind: str, unit: str = "test"
) -> list[Row]:
    """Return the rows of all cells wanted; `run` measures and adds one whose row is not there."""
    rows = []
    with Bar(total=sum(cell.tests for cell in wanted), desc=kind, unit=unit) as bar:
        for cell in wanted:
            bar.name(cell.name)
            finished = cells.find(cell.row)
            if finished is None:
                finished = run(cell.row, bar.update)
            else:
                bar.known(cell.tests)
            rows.append(finished)
    return rows


@dataclass(frozen=True)
class Outcome:
    """The records of all tests of a cell, and the seconds that running all takes; None where none was run."""

    records: list[Row]
    seconds: float | None = None


def run_tests(
    subject: Answers,
    case: Callable[[int], TextCase],
    tests: int,
    judge: Callable[[TextCase, str], Row],
    *,
    budget: int,
    rows: int,
    started: Results,
    done: Done = lambda tests: None,
) -> Outcome:
    """Run those of the tests 0 to `tests` that `started` does not hold, and return all by number.

    `case` draws a test, `judge` scores an answer, `done` is called as tests are finished. Seconds are
    those of the tests run now, scaled up to all of them.

    Raises: ConfigError where a test cannot be written, DataError for a tokenizer that is not the model's.
    """

    def checked(index: int) -> TextCase:
        drawn = case(index)
        check_ids(drawn.prompt_ids, subject.vocab_size)
        return drawn

    known = {row["test"]: row for row in started if row["test"] < tests}
    done(len(known))
    began, before = time.perf_counter(), len(known)
    todo = ((index, checked(index)) for index in range(tests) if index not in known)
    for batch in answered(subject.generate, subject.tokenizer, subject.stop_id, todo, budget=budget, rows=rows):
        fresh: dict[int, Row] = {}
        for index, drawn, answer in batch:
            named = {"test": index, "prompt_hash": drawn.prompt_hash, "prompt_tokens": len(drawn.prompt_ids)}
            fresh[index] = {**named, **judge(drawn, answer)}
        started.append(fresh.values())
        known |= fresh
        done(len(fresh))
    ran = tests - before
    seconds = round((time.perf_counter() - began) * tests / ran, 3) if ran else None
    return Outcome([known[index] for index in range(tests)], seconds)
