"""Measure line retrieval: of a record of named lines, each with a number, one is asked for at the end.

    python -m eval.lines MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Tests have a number of lines, or as many lines as a length in the model's own tokens holds; scores come
with exact 95% limits. eval/lines/cases.py defines the test, and every row names its protocol:

    python -m eval.lines models/Llama-2-7B-chat --lengths=4096,16384 --plot
    python -m eval.lines models/LongChat-7B --lines=200,300,400,500,600,680
    python -m eval.lines runs/tiny_2k --protocol=completion --lengths=1024,2048 --tests=200

A row is `short` where all its tests take 4,096 tokens or fewer and `long` where all take more than 8,092, as in
arXiv:2401.07004, Table 3 (LR-S and LR-L), whose scores are of 50 tests each. Position methods take the place of
the model's own:

    python -m eval.lines models/Llama-2-7B-chat --lengths=16384 --position.frequency.method=entropy_abf \
        --position.frequency.train_len=4096

Prints a table, and adds a line for each number of lines or length to lines.jsonl in eval/ of the run folder
(runs/lines-NAME for a Hugging Face folder) or FOLDER, once it is known, so that a second call continues from there;
lines-cases/ holds every test, and the picture shows all that was measured with the same tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eval.engine.answers import Cell, Done, answer_budget, choose_lengths, fill, judge, run_tests, summed
from eval.engine.cases import TextCase, Writer
from eval.engine.command import OWN_TEXT, CellOptions, Form, Request, run
from eval.engine.rows import Found, Results, Row
from eval.engine.subject import SUBJECT, Subject, note_idle_distance, open_subject, result_folder
from eval.engine.table import limits, to_text
from eval.lines.cases import HIGHEST, LEAST_LINES, Lines
from eval.lines.picture import draw_lines
from lab.command import start
from lab.schema import Length, Tests

KIND = "lines"
BUDGET = 32  # tokens for the answer, at least: longeval's models write a sentence before the number
DIGITS = 5  # of the longest number
MOST_TOKENS = 4096  # of the longest record, where the training window is not known
SHORT, LONG = 4096, 8092  # tokens (arXiv:2401.07004, section 4.5)
COMPARED_BY = ("protocol", "answer_budget", "n", "seed", "by")  # rows that agree in these share a picture
NAMED_BY = (*SUBJECT, *COMPARED_BY, "asked")


@dataclass(frozen=True, kw_only=True)
class LinesOptions(CellOptions):
    """Options of this command."""

    lines: tuple[Length, ...] | None = None
    """Numbers of lines, with commas between them; not together with --lengths."""
    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together, filled with as many lines as they hold;
    left out, without --lines, powers of two from a quarter of the training window up to it, with room for a test."""
    tests: Tests = 50
    """Tests of each number of lines or length."""
    protocol: Literal["longeval", "completion"] = "longeval"
    """How the prompt ends: with the question, or with the answer's first words, for models that only complete."""
    answer_budget: Length | None = None
    """Tokens that are left for the answer; left out, 32, or what the number takes where that is more."""

    def rules(self) -> list[str]:
        """Refuse two ways to set how long tests are, and records of too few lines."""
        faults = []
        if self.lines is not None and self.lengths is not None:
            faults.append("lines: cannot be set together with lengths; leave one of them out")
        for count in self.lines or ():
            if not LEAST_LINES <= count <= HIGHEST:
                faults.append(f"lines={count}: must be from {LEAST_LINES} to {HIGHEST}; change it")
        return faults


def measure(request: Request) -> Found:
    """Measure what is missing, write it, and return the table.

    Raises: LabError.
    """
    options: LinesOptions = request.options
    subject = open_subject(request)
    writer, tests = Writer(subject.tokenizer), Lines(options.protocol)
    budget = answer_budget(writer, DIGITS, options.answer_budget, BUDGET)
    asked = sizes(subject, writer, tests, options, budget)
    cells = Results(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    rows = measure_sizes(request, subject, writer, tests, budget, asked, cells)
    picture = cells.path.with_suffix(".png") if request.plots else None
    if picture is not None:
        draw_lines(cells.alike(rows[0], COMPARED_BY), subject.model.train_len, picture)
    return Found(table(rows), rows, cells.path, picture)


def sizes(subject: Subject, writer: Writer, tests: Lines, options: LinesOptions, budget: int) -> list[int]:
    """List the numbers of lines, or the lengths, all of which have room for every test.

    Raises: ConfigError for requested lengths that are too short.
    """
    if options.lines is not None:
        return sorted(set(options.lines))
    each = (tests.case(writer, lines=LEAST_LINES, seed=options.seed, index=index) for index in range(options.tests))
    least = budget + max(len(case.prompt_ids) for case in each)
    window = subject.model.train_len or MOST_TOKENS
    parts = f"whose question and {LEAST_LINES} lines take {least - budget} tokens and the answer {budget}"
    return choose_lengths(options.lengths, least, window, window, f"line retrieval, {parts}")


def measure_sizes(
    request: Request,
    subject: Subject,
    writer: Writer,
    tests: Lines,
    budget: int,
    asked: Sequence[int],
    cells: Results,
) -> list[Row]:
    """Measure every number of lines or length whose row is missing.

    Raises: ConfigError for a distance method that changes nothing in the longest test.
    """
    options: LinesOptions = request.options
    by = "lines" if options.lines is not None else "length"
    longest = max(len(case.prompt_ids) for case in draw(writer, tests, options, budget, by, asked[-1])) + budget
    note_idle_distance(request.overrides, subject.model.decoder.distance, longest)
    about = describe(subject, options, budget)
    unit = "lines" if by == "lines" else "tokens"
    wanted = [Cell({**about, "by": by, "asked": size}, options.tests, f"{size:,} {unit}") for size in asked]

    def run_one(row: Row, done: Done) -> Row:
        return run_size(subject, options, row, draw(writer, tests, options, budget, by, row["asked"]), cells, done)

    return fill(cells, wanted, run_one, kind=KIND)


def draw(writer: Writer, tests: Lines, options: LinesOptions, budget: int, by: str, size: int) -> list[TextCase]:
    """Draw all tests of a number of lines or a length."""
    cases = []
    for index in range(options.tests):
        lines = size if by == "lines" else tests.fitting(writer, size, budget, options.seed, index)
        cases.append(tests.case(writer, lines=lines, seed=options.seed, index=index))
    return cases


def run_size(
    subject: Subject, options: LinesOptions, row: Row, cases: Sequence[TextCase], cells: Results, done: Done
) -> Row:
    """Run the tests of one number of lines or length and write them."""
    budget = row["answer_budget"]
    tokens = [len(case.prompt_ids) + budget for case in cases]
    file = f"{KIND}-cases/{row['by']}-{row['asked']}-{cells.digest(row)}.jsonl"
    outcome = run_tests(
        subject,
        cases.__getitem__,
        len(cases),
        judge,
        budget=budget,
        rows=options.rows(max(tokens)),
        started=cells.started(file),
        done=done,
    )
    lines = [int(case.facts["lines"]) for case in cases]
    known = {
        "length": max(tokens),
        "lines": {"least": min(lines), "most": max(lines)},
        "range": range_of(min(tokens), max(tokens)),
    }
    return cells.add({**row, **known, **summed(outcome)}, (file, outcome.records))


def range_of(least: int, most: int) -> str:
    """Name the paper's range that tests of `least` to `most` tokens lie in.

    Example:
        >>> range_of(3900, 4096), range_of(8093, 9000), range_of(4000, 4097)
        ('short', 'long', 'between')
    """
    return "short" if most <= SHORT else "long" if least > LONG else "between"


def describe(subject: Subject, options: LinesOptions, budget: int) -> dict[str, Any]:
    """Describe what the rows measure, on what, and with what."""
    return {
        **subject.row,
        "metric": "line_retrieval",
        "protocol": options.protocol,
        "answer_budget": budget,
        "n": options.tests,
        "seed": options.seed,
    }


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a table."""
    first = rows[0]
    title = f"{first['model']}: {first['method']}; {first['protocol']} protocol, {first['n']} tests each"
    shown = [
        {
            "lines": "-".join(f"{number:,}" for number in dict.fromkeys(row["lines"].values())),
            "tokens": row["length"],
            "range": row["range"],
            "score (%)": 100 * row["score"],
            "95% limits": limits(row, ".1f", 100),
        }
        for row in rows
    ]
    return f"{title}\n\n{to_text(shown, {'tokens': ',', 'score (%)': '.1f'})}"


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    form = Form(options=LinesOptions, refused={"--text": OWN_TEXT})
    return run("eval.lines", __doc__, form, measure, arguments)


if __name__ == "__main__":
    start(main)
