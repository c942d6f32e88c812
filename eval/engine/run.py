"""A measure is one file, its name the command: eval/passkey.py is `python -m eval.passkey`.

The file's docstring is the help text. It declares its options and a subclass of Measure:

    class PasskeyOptions(CellOptions):           each field an option, its docstring the meaning
        depths: Annotated[int, Ge(2)] = 11
        '''Depths, evenly spaced.'''

    class Passkey(Measure):
        kind = "passkey"                         the command's name, and that of its files
        options: PasskeyOptions
        form = Form(options=PasskeyOptions)      the shared options that make no sense, if any, with the reason
        named_by = (*SUBJECT, "n", "length")     rows that agree in these fields are the same measurement
        alike = (*SUBJECT, "n")                  rows that agree in these are drawn in one picture

        def prepare(self): ...                   read texts, choose lengths, refuse what cannot be measured
        def cells(self): ...                     yield what is to be measured: a Cell for each row
        def measure(self, cell): ...             measure one: the rest of its row, and a record of each test
        def text(self, rows): ...                title and table
        def chart(self, rows): ...               the picture, made by lab.draw

    def main(arguments):
        return run_measure(Passkey, arguments)

The engine does the rest. It reads the command line and expands patterns of models; opens each model under the methods
asked for (self.subject); notes a method that changes nothing; shows the bar; skips rows that are already in KIND.jsonl
and appends each new one; keeps the finished tests of a stopped cell; prints text or JSON; saves the picture; returns
the exit status. A row is what `self.subject.row` says of the model, then the cell's fields, then what was measured.

A measure whose rows come all at once, as one over texts, replaces `rows` and `path` in place of `cells` and `measure`.
A new measure needs its file, a line in lab/cli.py's COMMANDS and its line in tests/eval/test_measures.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from eval.engine.answers import Outcome, judge, run_tests
from eval.engine.cases import TextCase
from eval.engine.command import Form, Request, run
from eval.engine.rows import Found, Results, Row
from eval.engine.sharing import opened
from eval.engine.subject import Subject, note_idle_distance, result_folder
from lab.bars import Bar
from lab.command import CONTINUES
from lab.draw import Rule, save


class Cell(NamedTuple):
    """A row to measure: the fields that name it, its number of tests, and its name in the bar and in file names."""

    row: Row
    tests: int
    name: str
    file: str


class Measure:
    """A measure of one model, as the module's docstring explains.

    `longest`, if `prepare` sets it, is the length at which a distance method without effect is noted.
    """

    kind: ClassVar[str]
    form: ClassVar[Form]
    named_by: ClassVar[tuple[str, ...]] = ()
    alike: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "test"
    stopped: ClassVar[str] = CONTINUES
    options: Any
    longest: int | None = None

    def __init__(self, request: Request, subject: Subject) -> None:
        self.request, self.options, self.subject = request, request.options, subject
        self.bar: Any = None
        self.prepare()
        if self.longest is not None:
            note_idle_distance(request.overrides, subject.model.decoder.distance, self.longest)

    @classmethod
    def chosen(cls, request: Request) -> type[Measure]:
        """Choose the measure that a command line asks for, where a command has several."""
        return cls

    def prepare(self) -> None:
        """Read and choose what all rows need.

        Raises: LabError for what cannot be measured.
        """

    def cells(self) -> Iterable[Cell]:
        """List the rows to measure."""
        raise NotImplementedError

    def measure(self, cell: Cell) -> tuple[Row, Sequence[Row]]:
        """Measure a cell: the fields to add to its row, and its tests' records, which go to a file of their own."""
        raise NotImplementedError

    def text(self, rows: Sequence[Row]) -> str:
        """Write the title and the tables of this call's rows."""
        raise NotImplementedError

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw rows; those of earlier calls that are alike are among them."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        return result_folder(self.kind, self.request, self.subject)

    @property
    def path(self) -> Path:
        """The file of the rows."""
        return self.folder / f"{self.kind}.jsonl"

    def picture(self, rows: Sequence[Row]) -> Path:
        """Name the picture."""
        return self.path.with_suffix(".png")

    def drawn(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows to draw: all in the file that are like the first of this call, where rows are appended."""
        return self.results.alike(rows[0], self.alike) if self.alike else rows

    def window_between(self, lengths: Iterable[int]) -> list[Rule]:
        """Mark the training window if it lies between the lengths of a picture."""
        window, known = self.subject.model.train_len, list(lengths)
        inside = window is not None and min(known) <= window <= max(known)
        return [Rule("x", window, f"training window {window:,}")] if window is not None and inside else []

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
        """Name the file of a cell's tests."""
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
        """Put a cell's tests to the model, but for those that a stopped call has finished.

        Units: `budget`, of the answer, and `length`, of the longest test with it, in tokens.
        """
        return run_tests(
            self.subject,
            case,
            cell.tests,
            judge,
            budget=budget,
            rows=self.options.rows(length),
            started=self.results.started(self.file_of(cell)),
            done=self.bar.update,
        )

    def found(self) -> Found:
        """Measure, draw the picture if it is asked for, and return what to show.

        Raises: LabError, KeyboardInterrupt.
        """
        rows = self.rows()
        picture = self.picture(rows) if self.request.plots else None
        if picture is not None:
            save(self.chart(self.drawn(rows)), picture)
        return Found(self.text(rows), rows, self.path, picture)


def run_measure(
    measure: type[Measure],
    arguments: Sequence[str],
    *,
    known: Callable[[Request], Found | None] = lambda request: None,
    together: Callable[[Request, Sequence[Found]], Found] | None = None,
) -> int:
    """Run a measure as a command and return the exit status.

    `known` may return what was found before, so that a model need not be opened; `together` sums up several models.
    """
    description = sys.modules[measure.__module__].__doc__

    def one(request: Request) -> Found | None:
        before = known(request)
        if before is not None:
            return before
        chosen = measure.chosen(request)
        with opened(request, shared=measure.form.shared) as subject:
            return None if subject is None else chosen(request, subject).found()

    return run(
        f"eval.{measure.kind}", description, measure.form, one, arguments, stopped=measure.stopped, together=together
    )
