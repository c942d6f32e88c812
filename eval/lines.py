"""Measure line retrieval: of a record of named lines, each with a number, one is asked for at the end.

    probe-lab lines MODEL [--option=value ...] [-o FOLDER]

Tests have as many lines as fit into a length in the model's own tokens. Scores have exact 95% limits:

    probe-lab lines models/Llama-2-7B-chat --lengths=4096,16384
    probe-lab lines runs/tiny_2k --protocol=completion --lengths=1024,2048 --tests=200

LR-S and LR-L of arXiv:2401.07004, Table 3, are tests of 4,096 tokens or fewer, and of more than 8,092; each score is
of 50 tests. Position methods take the place of the model's own:

    probe-lab lines models/Llama-2-7B-chat --lengths=16384 --frequency=entropy_abf:train_len=4096

A line is `line torpid-kid: REGISTER_CONTENT is <24169>`. Names are an adjective and a noun, all different. Numbers are
uniform from 1 to 50,000, all different, so that a number belongs to one line. The line that is asked for is uniform
too. The protocol `longeval` ends with the question, for models that answer questions; `completion` adds the answer's
first words, for models that only complete. Two things differ from the released scripts (Li et al. 2023, LongChat's
LongEval). The words are the lab's own lists. The answer's first number must be the line's (theirs takes the last one),
so that text after the answer does not count.

Prints a table. Adds a line for each test and for each length to lines-NAME-HASH.jsonl. A second call continues from
there.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import numpy as np

from eval.engine import answers, cases, run, subject
from eval.engine.cases import ANSWER, ASK, TextCase, Writer, fit_units
from eval.engine.random_words import Distinct, sample_pair
from eval.engine.text import limits
from lab.core.command import start
from lab.core.schema import Length, Tests
from lab.core.types import Row

Protocol = Literal["longeval", "completion"]
BUDGET = 32  # tokens for the answer: longeval's models write a sentence before the number
DIGITS = 5  # of the longest number
HIGHEST = 50_000  # number; and the most lines
LEAST_LINES = 2  # a single line leaves nothing to choose
TASK = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its corresponding "
    "<REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding <REGISTER_CONTENT> of "
    "a certain line index. Now the record start:\n\n"
)
LINE = "line {name}: REGISTER_CONTENT is <{number}>\n"
QUESTION = "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {name}? I need the number."
ANSWER_START = "\nThe <REGISTER_CONTENT> in line {name} is <"


class LinesOptions(cases.ChatOptions):
    """Options of this command."""

    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together, filled with all lines that fit;
    default: powers of two from a quarter of the training window up to it, with room for a test."""
    tests: Tests = 50
    """Tests of each length."""
    protocol: Protocol = "longeval"
    """How the prompt ends: with the question, or with the answer's first words, for models that only complete."""


def sample_record_case(writer: Writer, protocol: Protocol, *, lines: int, seed: int, index: int) -> TextCase:
    """Sample test `index` of a number of lines; with more lines, those of fewer lines come first.

    The requested line is at the same fraction of the record whatever its length.
    """
    rng = np.random.default_rng([seed, index])
    # The share precedes the names, and numbers have a stream of their own: neither depends on how many lines there are.
    share = float(rng.random())
    numbers = (np.random.default_rng([seed, index, 1]).permutation(HIGHEST)[:lines] + 1).tolist()
    names = Distinct(partial(sample_pair, rng)).first(lines)
    asked = int(share * lines)
    record = [LINE.format(name=name, number=number) for name, number in zip(names, numbers, strict=True)]
    ending = QUESTION + ANSWER
    if protocol == "completion":
        ending += ANSWER_START
    prompt = writer.apply_template("".join([ASK, TASK, *record, ending.format(name=names[asked])]))
    facts: Row = {"lines": lines, "line": asked, "name": names[asked]}
    return TextCase(np.array(writer.encode(prompt), dtype=np.int32), prompt, (str(numbers[asked]),), facts)


class LineRetrieval(run.Measure):
    """The share of lines found by the length of the record."""

    kind = "lines"
    options: LinesOptions
    named_by = (*subject.SUBJECT, "protocol", "chat", "answer_budget", "n", "seed", "by", "asked")
    columns = (
        ("lines", lambda row: row["lines"]["most"], ","),
        ("tokens", "length", ","),
        ("score (%)", lambda row: 100 * row["score"], ".1f"),
        ("95% limits", lambda row: limits(row, ".1f", 100), ""),
    )

    def prepare(self) -> None:
        """Choose the lengths, all of which have room for every test."""
        self.writer = self.options.writer(self.subject)
        answers.check_numbers(self.writer, DIGITS)
        # Names differ in their tokens, so that each test has a length of its own.
        fixed = max([len(self.case(index, LEAST_LINES).prompt_ids) for index in range(self.options.tests)])
        what = f"line retrieval of {LEAST_LINES} lines"
        self.lengths = answers.choose_lengths(self.options.lengths, what, fixed, BUDGET, self.subject)

    def case(self, index: int, lines: int) -> TextCase:
        return sample_record_case(self.writer, self.options.protocol, lines=lines, seed=self.options.seed, index=index)

    def cells(self) -> Iterator[run.Cell]:
        """List the lengths."""
        shared = {
            "metric": "line_retrieval",
            "protocol": self.options.protocol,
            "chat": self.options.chat,
            "answer_budget": BUDGET,
            "n": self.options.tests,
            "seed": self.options.seed,
            "by": "length",
        }
        for length in self.lengths:
            yield run.Cell({**shared, "asked": length}, self.options.tests, length, f"{length:,} tokens")

    def measure(self, cell: run.Cell) -> Row:
        """Run the tests of one length, each with all lines that fit."""

        def fill_case(index: int) -> TextCase:
            room = cell.tokens - BUDGET
            count = lambda lines: len(self.case(index, lines).prompt_ids)  # noqa: E731
            return self.case(index, fit_units(count, room, LEAST_LINES, HIGHEST))

        outcome = self.ask(cell, fill_case, budget=BUDGET)
        row = answers.summarize(outcome)
        lines = [record["lines"] for record in outcome.records]
        length = row["prompt_tokens"]["most"] + BUDGET
        return {"length": length, "lines": {"least": min(lines), "most": max(lines)}, **row}

    def title(self) -> str:
        return f"{super().title()}; {self.options.protocol} protocol, {self.options.tests} tests each"


main = LineRetrieval.main

if __name__ == "__main__":
    start(main)
