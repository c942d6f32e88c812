"""Measure passkey retrieval by depth and length: a number hidden in filler, asked for at the end.

    python -m eval.passkey MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Each cell is a depth at a length, in the model's own tokens, with exact 95% limits;
eval/passkey/cases.py defines the two protocols, and every row names its own:

    python -m eval.passkey models/Llama-2-13B --lengths=4096,8192,16384 --plot
    python -m eval.passkey runs/cpu_demo --lengths=128,192,256,384 --depths=5 --plot
    python -m eval.passkey runs/tiny_2k --protocol=lab --haystack=essays.txt --tests=50

Position methods take the place of the model's own, for instance Dual Chunk Attention and its ablation
(arXiv:2402.17463, Figure 4), with --position.distance.parts=intra, intra_inter or all:

    python -m eval.passkey runs/tiny_2k --lengths=4096,8192 --position.distance.method=dca \
        --position.distance.train_len=2048 --position.distance.parts=intra_inter

Prints a table, and adds a line for each cell to passkey.jsonl in eval/ of the run folder (runs/passkey-NAME for a
Hugging Face folder) or FOLDER, once it is known, so that a second call continues from there; passkey-cases/ holds
every test with its key and answer, and the picture, one for each subject and protocol, is beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from eval.engine.answers import Cell, Done, answer_budget, choose_lengths, fill, judge, run_tests, summed
from eval.engine.cases import Writer
from eval.engine.command import CellOptions, Form, Request, run
from eval.engine.needle_tests import haystack_of
from eval.engine.rows import Found, Results, Row
from eval.engine.subject import SUBJECT, Subject, note_idle_distance, open_subject, result_folder
from eval.engine.table import pivot, to_text
from eval.passkey.cases import DIGITS, Passkey, Protocol
from eval.passkey.picture import draw_grid
from lab.command import start
from lab.data.config import Synthetic
from lab.probe.haystacks import check_enough
from lab.schema import Length, PathText, Tests

KIND = "passkey"
BUDGET = 16  # tokens for the answer, at least
MOST_TOKENS = 4096  # of the longest text, where the training window is not known
ALIKE = (*SUBJECT, "protocol", "digits", "filler", "answer_budget", "n", "seed")  # cells that lie in one picture
NAMED_BY = (*ALIKE, "length", "depth")


@dataclass(frozen=True, kw_only=True)
class PasskeyOptions(CellOptions):
    """Options of this command."""

    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together; left out, powers of two from a quarter
    of the training window up to twice the window, those with room for a test."""
    depths: Annotated[int, Ge(2), Le(101)] = 11
    """Depths, evenly spaced from the filler's beginning to its end."""
    tests: Tests = 20
    """Tests of each cell."""
    protocol: Literal["passkey", "lab"] | None = None
    """Protocol: passkey, the usual one, or lab, in the wording of the synthetic corpus; left out, lab for runs
    on that corpus, else passkey."""
    digits: Annotated[int, Ge(2), Le(9)] | None = None
    """Digits of the number; left out, 5, in the lab's protocol as many as the run's synthetic corpus has."""
    haystack: PathText | None = None
    """Text file to hide the number in, of the lab's protocol; left out, fresh text of the run's corpus."""
    answer_budget: Length | None = None
    """Tokens of each length that are left for the answer; left out, 16, or what the number takes where that is more."""

    def rules(self) -> list[str]:
        """Refuse a text that would not be read."""
        if self.haystack is not None and self.protocol != "lab":
            what = f"haystack={self.haystack}: would be ignored, the passkey protocol has filler of its own"
            return [f"{what}; add --protocol=lab or leave it out"]
        return []

    @property
    def all_depths(self) -> list[float]:
        """Depths as shares of the filler, rising."""
        return [number / (self.depths - 1) for number in range(self.depths)]


def measure(request: Request) -> Found:
    """Measure what is missing, write it, and return the table.

    Raises: LabError.
    """
    options: PasskeyOptions = request.options
    subject = open_subject(request)
    writer, tests = Writer(subject.tokenizer), make_tests(subject, options)
    budget = answer_budget(writer, tests.digits, options.answer_budget, BUDGET)
    least = budget + max(tests.least(writer, options.seed, index) for index in range(options.tests))
    window = subject.model.train_len or MOST_TOKENS
    fixed = f"the {tests.protocol} protocol, whose fixed parts take {least - budget} tokens and the answer {budget}"
    lengths = choose_lengths(options.lengths, least, window, 2 * window, fixed)
    note_idle_distance(request.overrides, subject.model.decoder.distance, lengths[-1])
    if options.haystack is not None:
        n_tokens = lengths[-1] - budget - tests.least(writer, options.seed, 0)
        check_enough(tests.filler, subject.tokenizer, n_tokens, lengths[-1], f"--haystack={options.haystack}")
    cells = Results(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    rows = measure_grid(subject, writer, tests, options, budget, lengths, cells)
    title = f"{rows[0]['model']}: {rows[0]['method']}; {rows[0]['protocol']} protocol, {options.tests} tests a cell"
    grid = 100 * pivot(rows, "depth", "length").rename(index="{:.0%}".format, columns="{:,}".format)
    picture = None
    if request.plots:
        picture = cells.path.with_name(f"{KIND}-{cells.digest({**rows[0], 'length': None, 'depth': None})}.png")
        draw_grid(cells.alike(rows[0], ALIKE), title, subject.model.train_len, picture)
    return Found(f"{title}\n\n{to_text(grid, '.0f')}", rows, cells.path, picture)


def make_tests(subject: Subject, options: PasskeyOptions) -> Passkey:
    """Choose protocol, digits and filler.

    Raises: LabError where the lab's protocol has no text to hide numbers in.
    """
    experiment = subject.model.experiment
    corpus = experiment.data.corpus if experiment is not None else None
    protocol: Protocol = options.protocol or ("lab" if isinstance(corpus, Synthetic) else "passkey")
    if protocol == "passkey":
        return Passkey(protocol, options.digits or DIGITS)
    filler, _ = haystack_of(subject, options.haystack, None)
    return Passkey(protocol, options.digits or (corpus.digits if isinstance(corpus, Synthetic) else DIGITS), filler)


def measure_grid(
    subject: Subject,
    writer: Writer,
    tests: Passkey,
    options: PasskeyOptions,
    budget: int,
    lengths: Sequence[int],
    cells: Results,
) -> list[Row]:
    """Measure every cell whose row is missing."""
    about = describe(subject, tests, options, budget)
    wanted = [
        Cell(about | {"length": length, "depth": depth}, options.tests, f"{length:,} tokens at {depth:.0%}")
        for length in lengths
        for depth in options.all_depths
    ]
    return fill(cells, wanted, partial(run_cell, subject, writer, tests, options, cells), kind=KIND)


def run_cell(
    subject: Subject, writer: Writer, tests: Passkey, options: PasskeyOptions, cells: Results, row: Row, done: Done
) -> Row:
    """Run one cell and write it."""
    where = {"length": row["length"], "budget": row["answer_budget"], "depth": row["depth"], "seed": options.seed}
    file = f"{KIND}-cases/{row['length']}-{row['depth']:.2f}-{cells.digest(row)}.jsonl"
    outcome = run_tests(
        subject,
        lambda index: tests.case(writer, index=index, **where),
        options.tests,
        judge,
        budget=row["answer_budget"],
        rows=options.rows(row["length"]),
        started=cells.started(file),
        done=done,
    )
    return cells.add({**row, **summed(outcome)}, (file, outcome.records))


def describe(subject: Subject, tests: Passkey, options: PasskeyOptions, budget: int) -> dict[str, Any]:
    """Describe what the rows measure, on what, and with what."""
    return {
        **subject.row,
        "metric": KIND,
        "protocol": tests.protocol,
        "digits": tests.digits,
        "filler": hashlib.sha256(tests.filler.encode()).hexdigest()[:16] if tests.filler else None,
        "answer_budget": budget,
        "n": options.tests,
        "seed": options.seed,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.passkey", __doc__, Form(options=PasskeyOptions, text="haystack"), measure, arguments)


if __name__ == "__main__":
    start(main)
