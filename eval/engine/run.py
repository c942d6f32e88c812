"""A measure is one file, its name the command: eval/passkey.py is `probe-lab passkey`.

The file's docstring is the help text. It declares its options and a subclass of Measure:

    class PasskeyOptions(CellOptions):           each field an option, its docstring the meaning
        depths: Annotated[int, Ge(2)] = 11
        '''Depths, evenly spaced.'''

    class Passkey(Measure):
        kind = "passkey"                         the command's name, and that of its files
        options: PasskeyOptions
        named_by = (*SUBJECT, "n", "length")     rows that agree in these fields are the same measurement

        def prepare(self): ...                   read texts, choose lengths, reject what cannot be measured
        def cells(self): ...                     list the rows to measure, each a cell with its tests
        def measure(self, cell): ...             measure one: its fields; `ask` and `store_tests` keep its tests
        def rows(self): ...                      in place of these, yield all rows
        def title(self): ...                     what stands above the table and the picture
        columns = (("share", "score", ".3f"),)   the table: heading, the field or a function of the row, format
        def chart(self, rows): ...               the picture, made by lab.core.chart; --plot is rejected without it

    main = Passkey.main

The engine does the rest. It reads the command line, expands patterns of models, and opens each model under the methods
asked for (self.subject). It writes the rows, prints text or JSON, saves the picture, and returns the exit status. A row
is what `self.subject.row` says of the model, what names the measurement, and what was measured.

Of cells it shows the bar, skips those whose rows are stored (lab/results/store.py) and appends each new row. `ask`
keeps the finished tests of a stopped cell. Rows of a measure without `named_by` are written all at once. A new measure
needs its file and its line in tests/eval/test_measures.py; the console command finds it by its file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_type_hints

from eval.engine import cases, command
from eval.engine.answers import FinishedTests, Outcome, score_answer
from eval.engine.subject import SUBJECT, Subject, check_lengths, open_subject
from eval.engine.text import RESULTS, Column, Result, columns_text, to_jsonable
from lab.core.chart import Rule, save_chart
from lab.core.command import CONTINUES, Bar
from lab.core.types import Row
from lab.data.tokenizer import check_ids
from lab.probe import needles
from lab.probe.probe import answer_cases
from lab.results.store import Store, short_hash


class Cell(NamedTuple):
    """A row to measure: the fields that name it, its tests and their length, and its name in the bar."""

    row: Row
    tests: int
    tokens: int
    name: str


class Measure:
    """A measure of one model, as the module's docstring explains."""

    kind: ClassVar[str]
    named_by: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Sequence[Column]] = ()
    stopped: ClassVar[str] = CONTINUES
    several: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    options: Any
    bar: Any

    def __init__(self, request: command.Request, subject: Subject) -> None:
        self.request = request
        self.options = request.options
        self.subject = subject
        self.stores: list[Store] = []
        self.prepare()

    @classmethod
    def main(cls, arguments: Sequence[str]) -> int:
        """Measure what a command line asks for, and return the exit status."""
        spec = command.EvaluationSpec(
            name=cls.kind,
            description=sys.modules[cls.__module__].__doc__,
            options=get_type_hints(cls)["options"],
            excluded=("--plot",) if cls.chart is Measure.chart else (),
            stopped=cls.stopped,
            several=cls.several,
            replaces=cls.replaces,
        )
        return command.run_evaluation(
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

    def measure(self, cell: Cell) -> Row:
        """Measure a cell, store its tests, and return the fields to add to its row."""
        raise NotImplementedError

    def rows(self) -> Iterable[Row]:
        """Measure the cells whose rows are missing, and yield the rows of all."""
        store = self.open_store()
        cells = [cell._replace(row={**self.subject.row, **cell.row}) for cell in self.cells()]
        # Lengths that are chosen by default may exceed what the model reads.
        check_lengths({"lengths": max([cell.tokens for cell in cells], default=0)}, self.subject)
        with Bar(total=sum(cell.tests for cell in cells), desc=self.kind, unit="test") as self.bar:
            for cell in cells:
                self.bar.name(cell.name)
                row = store.find(cell.row)
                if row is None:
                    row = {**cell.row, **self.measure(cell), "cell": self.name_cell(cell)}
                    store.append([row])
                else:
                    self.bar.count_finished(cell.tests)
                yield row

    def title(self) -> str:
        """Name the model and its method; the title is above the text and in the picture."""
        return f"{self.subject.model.name}: {self.subject.model.method}"

    def text(self, rows: Sequence[Row]) -> str:
        return columns_text(rows, self.columns)

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot the rows."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The folder of the results: FOLDER of -o, eval/ of the run folder, or results/KIND-NAME."""
        model = self.subject.model
        own = RESULTS / f"{self.kind}-{model.name}" if model.folder is None else model.folder / "eval"
        return self.request.folder or own

    def open_store(self, **key: object) -> Store:
        """Open the file of the model's results, which its weights, methods and what else is given decide."""
        row = self.subject.row
        key = {name: row[name] for name in SUBJECT} | key
        self.stores.append(Store(self.folder, f"{self.kind}-{row['model']}", key, self.named_by))
        return self.stores[-1]

    def window_between(self, lengths: Iterable[int]) -> list[Rule]:
        """Mark the training window if it is between the lengths of a picture."""
        window = self.subject.model.train_len
        rising = sorted(lengths)
        inside = rising[0] <= window <= rising[-1]
        return [Rule("x", window, f"training window {window:,}")] if inside else []

    def name_cell(self, cell: Cell) -> str:
        return f"{cell.name}, {short_hash(self.stores[-1].name(cell.row))}"

    def store_tests(self, cell: Cell, tests: Iterable[Row]) -> None:
        name = self.name_cell(cell)
        self.stores[-1].append([{"cell": name, **test} for test in tests])

    def ask(
        self,
        cell: Cell,
        case: Callable[[int], cases.TextCase],
        *,
        budget: int,
        judge: Callable[[cases.TextCase, str], Row] = score_answer,
    ) -> Outcome:
        """Put a cell's tests to the model, but for those that a stopped call has finished; return all by number.

        Seconds are those of the tests run now, scaled up to all of them.

        Units: `budget`, of the answer, in tokens.
        Raises: ConfigError where a test cannot be written, DataError for a tokenizer that is not the model's.
        """
        subject = self.subject
        finished = self.stores[-1].tests[self.name_cell(cell)]
        todo = [index for index in range(cell.tests) if index not in finished]
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
            rows=self.options.rows(cell.tokens),
        )
        for batch in batches:
            fresh = []
            for index, test, answer in batch:
                prompt = {"test": index, "prompt_hash": test.prompt_hash, "prompt_tokens": len(test.prompt_ids)}
                fresh.append({**prompt, **judge(test, answer)})
            self.store_tests(cell, fresh)
            self.bar.update(len(fresh))
        seconds = None
        if todo:
            seconds = round((time.perf_counter() - began) * cell.tests / len(todo), 3)
        return Outcome([finished[index] for index in range(cell.tests)], seconds)

    def open_tests(self, tests: Row, first: needles.Case, n_tests: int, by: str = "length") -> FinishedTests:
        """Open the file of the model's needle tests; `tests` are their properties, `first` is one of them."""
        # The hash of a prompt stands for the tokenizer and how tests are sampled.
        store = self.open_store(**tests, device=self.subject.device.type, prompt=first.prompt_hash)
        return FinishedTests(store, by, self.bar, n_tests)

    def write(self, rows: Sequence[Row]) -> None:
        """Write the rows, unless each was appended as soon as it was known."""
        if not self.stores:
            settings = asdict(self.options)
            del settings["device"]  # which changes no number
            self.open_store(settings=settings).write(map(to_jsonable, rows))

    def run(self) -> Result:
        """Measure, plot the picture if it is asked for, and return what to print.

        Raises: LabError, KeyboardInterrupt.
        """
        rows = list(self.rows())
        self.write(rows)
        picture = self.stores[0].path.with_suffix(".png") if self.request.plots else None
        if picture is not None:
            save_chart(self.chart(rows), picture)
        return Result(f"{self.title()}\n\n{self.text(rows)}", rows, [store.path for store in self.stores], picture)
