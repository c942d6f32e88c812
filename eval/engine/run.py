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

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import distributed

from eval.engine.answers import Outcome, judge, run_tests
from eval.engine.cases import TextCase
from eval.engine.command import Form, Request, run
from eval.engine.methods import PREFIX
from eval.engine.rows import Found, Results, Row, named_series
from eval.engine.subject import Subject, device_for, note_idle, open_subject, result_folder
from lab.command import CONTINUES, Bar
from lab.draw import Rule, draw, save
from lab.errors import ConfigError
from lab.launch import read_launch
from lab.model.attention.context import ContextGroup

WAIT = timedelta(days=1)  # for the next row, while the first process reads, draws or writes


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
        if self.longest is not None and any(key.startswith(PREFIX) for key in request.overrides):
            note_idle("--position.distance", subject.model.decoder.distance, self.longest)

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
    together: Callable[[Request, Sequence[Found]], Found] | None = None,
) -> int:
    """Run a measure as a command and return the exit status; `together` sums up several models."""

    def one(request: Request) -> Found | None:
        chosen = measure.chosen(request)
        with opened(request, shared=measure.form.shared) as subject:
            return None if subject is None else chosen(request, subject).found()

    description = sys.modules[measure.__module__].__doc__
    return run(
        f"eval.{measure.kind}", description, measure.form, one, arguments, stopped=measure.stopped, together=together
    )


@contextmanager
def opened(request: Request, *, shared: bool) -> Iterator[Subject | None]:
    """Open the model; None in all processes but the first, once it has ended.

    Raises: LabError, also for a model whose heads cannot be divided among the processes.
    """
    launch = read_launch(os.environ)
    if not shared or launch.world_size == 1:
        yield open_subject(request)
        return
    on_gpu = device_for(request.options.device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(launch.local_rank)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=WAIT)
    try:
        subject = replace(open_subject(request), context=ContextGroup.of(launch.world_size))
        heads = subject.model.decoder.cfg.n_kv_heads
        if heads % launch.world_size:
            raise ConfigError(
                f"--nproc-per-node={launch.world_size}: processes that share a window must divide the {heads} "
                f"key-value heads of {request.model}; start fewer"
            )
        if launch.is_first:
            try:
                yield subject
            finally:
                distributed.broadcast_object_list([None])
        else:
            serve(subject)
            yield None
    finally:
        distributed.destroy_process_group()


def serve(subject: Subject) -> None:
    """Score the rows that the first process sends, until it sends none."""
    given: list[Any] = [None]
    while True:
        distributed.broadcast_object_list(given)
        if given[0] is None:
            return
        subject.losses(*given[0], sends=False)
