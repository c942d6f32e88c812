"""A measure is one file, its name the command: eval/passkey.py is `probe-lab passkey`.

The file's docstring is the help text. It declares its options and a subclass of Measure:

    class PasskeyOptions(CellOptions):           each field an option, its docstring the meaning
        depths: Annotated[int, Ge(2)] = 11
        '''Depths, evenly spaced.'''

    class Passkey(Measure):
        kind = "passkey"                         the command's name, and that of its files
        options: PasskeyOptions
        spec = EvaluationSpec(options=PasskeyOptions)      the options, and the shared ones that make no sense, if any
        named_by = (*SUBJECT, "n", "length")     rows that agree in these fields are the same measurement
        alike = (*SUBJECT, "n")                  rows that agree in these are drawn in one picture

        def prepare(self): ...                   read texts, choose lengths, reject what cannot be measured
        def cells(self): ...                     list the rows to measure, each a cell with its tests
        def measure(self, cell): ...             measure one: its fields, and its tests' records
        def rows(self): ...                      in place of these, yield all rows
        def title(self): ...                     what stands above the table and the picture
        columns = (("share", "score", ".3f"),)   the table: heading, the field or a function of the row, format
        def chart(self, rows): ...               the picture, made by lab.core.chart

    main = Passkey.main

The engine does the rest. It reads the command line, expands patterns of models, and opens each model under the methods
asked for (self.subject). It writes the rows, prints text or JSON, saves the picture, and returns the exit status. A row
is what `self.subject.row` says of the model, what names the measurement, and what was measured.

Of cells it shows the bar, skips those whose rows are already in KIND.jsonl and appends each new row. `ask` keeps the
finished tests of a stopped cell. Rows of a measure without `named_by` are written all at once. A new measure needs its
file and its line in tests/eval/test_measures.py; the console command finds it by its file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from eval.engine import cases, command
from eval.engine.answers import FinishedTests, Outcome, score_answer
from eval.engine.rows import RESULTS, Column, Result, Results, columns_text, named_series, short_hash, write_rows
from eval.engine.subject import Subject, announce, check_lengths, open_subject
from lab.core.chart import Rule, plot_rows, save
from lab.core.command import CONTINUES, Bar
from lab.core.types import Row
from lab.data.tokenizer import check_ids
from lab.probe import needles
from lab.probe.probe import answer_cases


class Cell(NamedTuple):
    """A row to measure: the fields that name it, its tests and their length, and its name in the bar and in files."""

    row: Row
    tests: int
    tokens: int
    name: str
    file: str


class Measure:
    """A measure of one model, as the module's docstring explains."""

    kind: ClassVar[str]
    spec: ClassVar[command.EvaluationSpec]
    named_by: ClassVar[tuple[str, ...]] = ()
    alike: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Sequence[Column]] = ()
    unit: ClassVar[str] = "test"
    stopped: ClassVar[str] = CONTINUES
    options: Any
    bar: Any

    def __init__(self, request: command.Request, subject: Subject) -> None:
        self.request = request
        self.options = request.options
        self.subject = subject
        self.prepare()

    @classmethod
    def main(cls, arguments: Sequence[str]) -> int:
        """Measure what a command line asks for, and return the exit status."""
        text = sys.modules[cls.__module__].__doc__
        spec = replace(cls.spec, name=cls.kind, description=text, stopped=cls.stopped)
        return command.run(
            spec, lambda request: cls.select_measure(request)(request, open_subject(request)).run(), arguments
        )

    @classmethod
    def select_measure(cls, request: command.Request) -> type[Measure]:
        """Choose the measure that a command line asks for, where a command has several."""
        return cls

    def prepare(self) -> None:
        """Read and choose what all rows need.

        Raises: LabError for what cannot be measured.
        """

    def cells(self) -> Iterable[Cell]:
        """List what is to be measured."""
        raise NotImplementedError

    def measure(self, cell: Cell) -> tuple[Row, Sequence[Row]]:
        """Measure a cell: the fields to add to its row, and its tests' records, which go to a file of their own."""
        raise NotImplementedError

    def rows(self) -> Iterable[Row]:
        """Measure the cells whose rows are missing, and yield the rows of all."""
        self.results = Results(self.path, self.named_by)
        cells = []
        missing = []
        for cell in self.cells():
            named = cell._replace(row={**self.subject.row, **cell.row})
            cells.append(named)
            if self.results.find(named.row) is None:
                missing.append((named.tests, named.tokens))
        # Cells whose rows are known are not limited: they may come from a machine with more memory.
        check_lengths({"lengths": max((tokens for _, tokens in missing), default=0)}, self.subject)
        self.announce(missing)
        with Bar(total=sum(cell.tests for cell in cells), desc=self.kind, unit=self.unit) as self.bar:
            for cell in cells:
                self.bar.name(cell.name)
                row = self.results.find(cell.row)
                if row is None:
                    score, records = self.measure(cell)
                    row = self.results.add({**cell.row, **score}, (self.name_cases(cell), records))
                else:
                    self.bar.count_finished(cell.tests)
                yield row

    def title(self) -> str:
        return f"{self.subject.model.name}: {self.subject.model.method}"

    def text(self, rows: Sequence[Row]) -> str:
        return f"{self.title()}\n\n{columns_text(rows, self.columns)}"

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot rows; those of earlier calls that are alike are among them."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The folder of the results: FOLDER of -o, eval/ of the run folder, or results/KIND-NAME."""
        model = self.subject.model
        if self.request.folder is not None:
            return self.request.folder
        if model.folder is not None:
            return model.folder / "eval"
        return RESULTS / f"{self.kind}-{model.name}"

    @property
    def path(self) -> Path:
        return self.folder / f"{self.kind}.jsonl"

    def picture(self, rows: Sequence[Row]) -> Path:
        return self.path.with_suffix(".png")

    def window_between(self, lengths: Iterable[int]) -> list[Rule]:
        """Mark the training window if it is between the lengths of a picture."""
        window = self.subject.model.train_len
        rising = sorted(lengths)
        if rising[0] <= window <= rising[-1]:
            return [Rule("x", window, f"training window {window:,}")]
        return []

    def length_chart(self, rows: Sequence[Row], y_title: str, **options: Any) -> Any:
        """Plot scores with their limits over length, a line for each model and method."""
        return plot_rows(
            named_series(rows),
            "length",
            "score",
            "series",
            low="low",
            high="high",
            log_x=True,
            y_title=y_title,
            title=self.title(),
            rules=self.window_between(row["length"] for row in rows),
            **options,
        )

    def announce(self, tests: Sequence[tuple[int, int]]) -> None:
        """Print the cost of tests, pairs of their number and their tokens, if it exceeds a minute."""
        announce(self.subject, self.kind, self.unit, tests)

    def name_cases(self, cell: Cell) -> str:
        return f"{self.kind}-cases/{cell.file}-{self.results.digest(cell.row)}.jsonl"

    def ask(
        self,
        cell: Cell,
        case: Callable[[int], cases.TextCase],
        *,
        budget: int,
        length: int,
        judge: Callable[[cases.TextCase, str], Row] = score_answer,
    ) -> Outcome:
        """Put a cell's tests to the model, but for those that a stopped call has finished; return all by number.

        Seconds are those of the tests run now, scaled up to all of them.

        Units: `budget`, of the answer, and `length`, of the longest test with it, in tokens.
        Raises: ConfigError where a test cannot be written, DataError for a tokenizer that is not the model's.
        """
        subject = self.subject
        # The key of the part is what names the row, and each of its lines is named by the number of its test.
        key = {field: cell.row.get(field) for field in self.named_by}
        finished = Results(self.results.part(self.name_cases(cell)), ("test",), key)
        todo = [index for index in range(cell.tests) if finished.find({"test": index}) is None]
        self.bar.count_finished(cell.tests - len(todo))
        began = time.perf_counter()

        def sample_cases() -> Iterator[tuple[int, cases.TextCase]]:
            for index in todo:
                test = case(index)
                check_ids(test.prompt_ids, subject.vocab_size)
                yield index, test

        batches = answer_cases(
            subject.generate,
            subject.tokenizer,
            subject.stop_id,
            sample_cases(),
            budget=budget,
            rows=self.options.rows(length),
        )
        for batch in batches:
            fresh = []
            for index, test, answer in batch:
                prompt = {"test": index, "prompt_hash": test.prompt_hash, "prompt_tokens": len(test.prompt_ids)}
                fresh.append({**prompt, **judge(test, answer)})
            finished.append(fresh)
            self.bar.update(len(fresh))
        seconds = None
        if todo:
            seconds = round((time.perf_counter() - began) * cell.tests / len(todo), 3)
        rows = {row.get("test"): row for row in finished}
        return Outcome([rows[index] for index in range(cell.tests)], seconds)

    def open_finished(self, tests: Row, first: needles.Case, n_tests: int, by: str = "length") -> FinishedTests:
        """Open the file of the model's finished needle tests; `tests` are their properties, `first` is one of them."""
        subject = self.subject
        key = {
            **tests,
            "weights": subject.weights,
            "method": subject.model.method,
            "precision": subject.precision,
            "device": subject.device.type,
            "prompt": first.prompt_hash,  # names the tokenizer and how tests are drawn
        }
        # The name follows from the key: tests of other weights or settings go to other files.
        digest = short_hash(json.dumps(key, sort_keys=True))
        path = self.folder / f"tests-{subject.model.consumed_tokens or 0:015d}-{digest}.jsonl"
        return FinishedTests(Results(path, (by, "test"), key), self.bar, n_tests)

    def write(self, rows: Sequence[Row]) -> None:
        """Write the rows, unless each was appended as soon as it was known."""
        if not self.named_by:
            write_rows(self.path, rows)

    def run(self) -> Result:
        """Measure, plot the picture if it is asked for, and return what to print.

        Raises: LabError, KeyboardInterrupt.
        """
        rows = list(self.rows())
        self.write(rows)
        picture = None
        if self.request.plots:
            picture = self.picture(rows)
            plotted = rows
            if self.alike:
                plotted = []
                for row in self.results:
                    if all(row.get(field) == rows[0][field] for field in self.alike):
                        plotted.append(row)
            save(self.chart(plotted), picture)
        return Result(self.text(rows), rows, self.path, picture)
