"""A measure is one file, its name the command: eval/passkey.py is `probe-lab passkey`.

The file's docstring is the help text. It declares its options and a subclass of Measure:

    class PasskeyOptions(CellOptions):           each field an option, its docstring the meaning
        depths: Annotated[int, Ge(2)] = 11
        '''Depths, evenly spaced.'''

    class Passkey(Measure):
        kind = "passkey"                         the command's name, and that of its files
        options: PasskeyOptions
        form = Form(options=PasskeyOptions)      the options, and the shared ones that make no sense, if any
        named_by = (*SUBJECT, "n", "length")     rows that agree in these fields are the same measurement
        alike = (*SUBJECT, "n")                  rows that agree in these are drawn in one picture

        def prepare(self): ...                   read texts, choose lengths, refuse what cannot be measured
        def cells(self): ...                     yield what is to be measured: a Cell for each row
        def measure(self, cell): ...             measure one: the rest of its row, and a record of each test
        def title(self): ...                     what stands above the table and the picture
        columns = (("share", "score", ".3f"),)   the table: heading, the field or a function of the row, format
        def chart(self, rows): ...               the picture, made by lab.draw

    main = Passkey.main

The engine does the rest. It reads the command line, expands patterns of models, and opens each model under the methods
asked for (self.subject). It shows the bar, skips rows that are already in KIND.jsonl and appends each new one. It keeps
the finished tests of a stopped cell. It prints text or JSON, saves the picture, and returns the exit status. A row is
what `self.subject.row` says of the model, then the cell's fields, then what was measured.

A measure whose rows come all at once replaces `rows` and `path` in place of `cells` and `measure`, as OnTexts does.
A new measure needs its file and its line in tests/eval/test_measures.py; the console command finds it by its file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from eval.engine.answers import FinishedTests, Outcome, judge
from eval.engine.cases import TextCase
from eval.engine.command import Form, Request, run
from eval.engine.rows import RESULTS, Column, Found, Results, Row, columns_text, named_series, shortened, write_rows
from eval.engine.subject import Subject, draw_texts, open_subject, source, source_text
from lab.command import CONTINUES, NOTHING_WRITTEN, Bar
from lab.data.tokenizer import check_ids
from lab.draw import Rule, draw, save
from lab.probe.effective_length import answered
from lab.probe.needles import Case


class Cell(NamedTuple):
    """A row to measure: the fields that name it, its number of tests, and its name in the bar and in file names."""

    row: Row
    tests: int
    name: str
    file: str


class Measure:
    """A measure of one model, as the module's docstring explains."""

    kind: ClassVar[str]
    form: ClassVar[Form]
    named_by: ClassVar[tuple[str, ...]] = ()
    alike: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Sequence[Column]] = ()
    unit: ClassVar[str] = "test"
    stopped: ClassVar[str] = CONTINUES
    options: Any

    def __init__(self, request: Request, subject: Subject) -> None:
        self.request = request
        self.options = request.options
        self.subject = subject
        self.bar: Any = None
        self.prepare()

    @classmethod
    def main(cls, arguments: Sequence[str]) -> int:
        """Run the measure as a command and return the exit status."""
        one = lambda request: cls.chosen(request)(request, open_subject(request)).found()  # noqa: E731
        about = sys.modules[cls.__module__].__doc__
        return run(cls.kind, about, cls.form, one, arguments, stopped=cls.stopped)

    @classmethod
    def chosen(cls, request: Request) -> type[Measure]:
        """Choose the measure that a command line asks for, where a command has several."""
        return cls

    def prepare(self) -> None:
        """Read and choose what all rows need.

        Raises: LabError for what cannot be measured.
        """

    def cells(self) -> Iterable[Cell]:
        raise NotImplementedError

    def measure(self, cell: Cell) -> tuple[Row, Sequence[Row]]:
        """Measure a cell: the fields to add to its row, and its tests' records, which go to a file of their own."""
        raise NotImplementedError

    def title(self) -> str:
        return f"{self.subject.model.name}: {self.subject.model.method}"

    def text(self, rows: Sequence[Row]) -> str:
        return f"{self.title()}\n\n{columns_text(rows, self.columns)}"

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw rows; those of earlier calls that are alike are among them."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The folder of the results: FOLDER of -o, eval/ of the run folder, or results/KIND-NAME."""
        model = self.subject.model
        own = RESULTS / f"{self.kind}-{model.name}" if model.folder is None else model.folder / "eval"
        return self.request.folder or own

    @property
    def path(self) -> Path:
        return self.folder / f"{self.kind}.jsonl"

    def picture(self, rows: Sequence[Row]) -> Path:
        return self.path.with_suffix(".png")

    def window_between(self, lengths: Iterable[int]) -> list[Rule]:
        """Mark the training window if it lies between the lengths of a picture."""
        window = self.subject.model.train_len
        known = sorted(lengths)
        inside = known[0] <= window <= known[-1]
        return [Rule("x", window, f"training window {window:,}")] if inside else []

    def length_chart(self, rows: Sequence[Row], y_title: str, title: str, **style: Any) -> Any:
        """Draw scores with their limits over length, a line for each model and method."""
        rules = self.window_between(row["length"] for row in rows)
        style |= {"y_title": y_title, "title": title, "rules": rules}
        return draw(named_series(rows), "length", "score", "series", low="low", high="high", log_x=True, **style)

    def rows(self) -> list[Row]:
        """Measure the cells whose rows are missing, and return the rows of all."""
        self.results = Results(self.path, self.named_by)
        cells = [cell._replace(row={**self.subject.row, **cell.row}) for cell in self.cells()]
        rows = []
        with Bar(total=sum(cell.tests for cell in cells), desc=self.kind, unit=self.unit) as self.bar:
            for cell in cells:
                self.bar.name(cell.name)
                row = self.results.find(cell.row)
                if row is None:
                    found, records = self.measure(cell)
                    row = self.results.add({**cell.row, **found}, (self.file_of(cell), records))
                else:
                    self.bar.known(cell.tests)
                rows.append(row)
        return rows

    def file_of(self, cell: Cell) -> str:
        return f"{self.kind}-cases/{cell.file}-{self.results.digest(cell.row)}.jsonl"

    def ask(
        self,
        cell: Cell,
        case: Callable[[int], TextCase],
        *,
        budget: int,
        length: int,
        judge: Callable[[TextCase, str], Row] = judge,
    ) -> Outcome:
        """Put a cell's tests to the model, but for those that a stopped call has finished; return all by number.

        Seconds are those of the tests run now, scaled up to all of them.

        Units: `budget`, of the answer, and `length`, of the longest test with it, in tokens.
        Raises: ConfigError where a test cannot be written, DataError for a tokenizer that is not the model's.
        """
        subject = self.subject
        started = Results(self.results.part(self.file_of(cell)), ("test",))
        known = {row["test"]: row for row in started if row["test"] < cell.tests}
        todo = [index for index in range(cell.tests) if index not in known]
        self.bar.update(len(known))
        began = time.perf_counter()
        side_by_side: dict[str, Any] = {"budget": budget, "rows": self.options.rows(length)}

        def drawn(index: int) -> tuple[int, TextCase]:
            test = case(index)
            check_ids(test.prompt_ids, subject.vocab_size)
            return index, test

        asked = map(drawn, todo)
        for batch in answered(subject.generate, subject.tokenizer, subject.stop_id, asked, **side_by_side):
            fresh: dict[int, Row] = {}
            for index, test, answer in batch:
                named = {"test": index, "prompt_hash": test.prompt_hash, "prompt_tokens": len(test.prompt_ids)}
                fresh[index] = {**named, **judge(test, answer)}
            started.append(fresh.values())
            known |= fresh
            self.bar.update(len(fresh))
        seconds = round((time.perf_counter() - began) * cell.tests / len(todo), 3) if todo else None
        return Outcome([known[index] for index in range(cell.tests)], seconds)

    def finished(self, tests: Row, first: Case, asked: int, by: str = "length") -> FinishedTests:
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
        return FinishedTests(self.folder, subject.model.consumed_tokens or 0, key, by, self.bar, asked)

    def found(self) -> Found:
        """Measure, draw the picture if it is asked for, and return what to show.

        Raises: LabError, KeyboardInterrupt.
        """
        rows = self.rows()
        picture = self.picture(rows) if self.request.plots else None
        if picture is not None:
            others = self.results if self.alike else rows
            alike = [row for row in others if all(row.get(field) == rows[0][field] for field in self.alike)]
            save(self.chart(alike), picture)
        return Found(self.text(rows), rows, self.path, picture)


class OnTexts(Measure):
    """A measure on pieces of text of one length, whose rows come all at once and go to a file of their own.

    It gives `records` in place of cells. The file's name follows from the checkpoint and the settings, so that the same
    measurement has the same file.
    """

    stopped = NOTHING_WRITTEN

    def records(self) -> Iterable[Row]:
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """Measure and write all rows.

        Raises: ConfigError where they cannot be written.
        """
        about = {**source(self.subject.model, self.subject.device), "seed": self.options.seed}
        rows = [{**about, **row} for row in self.records()]
        write_rows(self.path, rows)
        return rows

    @property
    def path(self) -> Path:
        """The file of the rows; the device changes no number and does not name it."""
        model = self.subject.model
        settings = asdict(self.options)
        del settings["device"]
        digest = shortened(json.dumps({**settings, "method": model.method}, sort_keys=True))
        trained = model.name if model.consumed_tokens is None else f"{model.consumed_tokens:015d}"
        return self.folder / f"{self.kind}-{trained}-{digest}.jsonl"

    def title(self) -> str:
        """Name the model and the number of texts."""
        texts = self.options.texts
        return f"{super().title()}; {texts} text{'s' * (texts != 1)}"

    def draw_texts(self, n_tokens: int) -> Tensor:
        """Draw the texts that the options ask for.

        Shapes: int64 (texts, n_tokens).
        Raises: LabError.
        """
        options = self.options
        subject = self.subject
        text = source_text(subject, options.text)
        name = options.text and f"--text={options.text}"
        sizes = {"n_tokens": n_tokens, "texts": options.texts, "seed": options.seed, "vocab_size": subject.vocab_size}
        return torch.from_numpy(draw_texts(text, name, subject.tokenizer, **sizes)).to(subject.device)
