"""Tests that hide one number in a text and ask for it: the number, the tokens of its answer, and the score.

A test passes when the first number in the answer is the number that was hidden: whole, digit by digit. In the protocol
of the lab its digits may be in groups, and the mark of a list may precede it. What follows it does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eval.engine.cases import TextCase, Writer
from eval.engine.random_words import sample_number
from eval.engine.subject import Subject, doublings
from lab.core.command import Bar
from lab.core.errors import ConfigError
from lab.core.types import CONFIDENCE, Row
from lab.probe.limits import share_limits
from lab.probe.needles import NUMBER, SAMPLE_NUMBERS
from lab.probe.probe import Worker
from lab.results.store import Store

Read = Callable[[str], set[str]]  # the first number of a text, in all ways that a protocol accepts


def summarize(outcome: Outcome) -> Row:
    """Summarize the tests of a cell: the share passed, with exact limits, and the prompts' lengths."""
    passed = sum(record["passed"] for record in outcome.records)
    tokens = [record["prompt_tokens"] for record in outcome.records]
    return {
        **share(passed, len(tokens)),
        "confidence": CONFIDENCE,
        "passed": passed,
        "prompt_tokens": {"least": min(tokens), "most": max(tokens)},
        "seconds": outcome.seconds,
    }


def share(passed: int, tests: int) -> Row:
    """Return a share with its exact limits; nulls without tests."""
    if not tests:
        return {"score": None, "low": None, "high": None}
    low, high = share_limits(passed, tests, CONFIDENCE)
    return {"score": passed / tests, "low": low, "high": high}


def first_digits(text: str) -> set[str]:
    """Read the first digits of a text, as published protocols do.

    Example:
        >>> first_digits("It is 770,487, not 12"), first_digits("none")
        ({'770'}, set())
    """
    return set(NUMBER.findall(text)[:1])


def score_answer(drawn: TextCase, answer: str, read: Read = first_digits) -> Row:
    """Return whether an answer's first number is the hidden one."""
    (expected,) = drawn.answers
    return {"expected": expected, "answer": answer, "passed": expected in read(answer), **drawn.facts}


def check_numbers(writer: Writer, digits: int, read: Read = first_digits) -> None:
    """Reject a tokenizer that does not read numbers back whole, with a DataError."""
    rng = np.random.default_rng(0)
    for _ in range(SAMPLE_NUMBERS):
        writer.check_spelling([sample_number(rng, digits)], lambda text, expected: float(expected[0] in read(text)))


def choose_lengths(
    asked: Sequence[int] | None, what: str, fixed: int, budget: int, subject: Subject, windows: int = 1
) -> list[int]:
    """Choose lengths with room for fixed parts and answer, rising: as requested, or powers of two.

    These are from a quarter of the model's window up to `windows` times the window.

    Raises: ConfigError for a requested length that is too short; `what` names the tests.
    """
    # The answer counts towards a length, as the model must read prompt and answer together.
    least = fixed + budget
    if asked and min(asked) < least:
        rule = f"too short for {what}: fixed parts take {fixed} tokens and the answer {budget}"
        raise ConfigError(f"--lengths={min(asked)}: {rule}; use {least} or more")
    window = subject.model.train_len
    powers = doublings(max(1, window // 4), subject.cap_length(windows * window))
    lengths = asked or [length for length in powers if length >= least]
    # Without a power of two among these, the least one with room is taken.
    return sorted(set(lengths)) or [1 << (least - 1).bit_length()]


class Outcome(NamedTuple):
    """The records of all tests of a cell, and the seconds that running all takes; None where none was run."""

    records: list[Row]
    seconds: float | None = None


class FinishedTests(Worker):
    """The results of needle tests, as a probe loads and saves them: by length or distance, and by number.

    The key of their file has checkpoint, position methods, protocol, text and seed. How many tests there are, at which
    lengths, and what passes is not in it: a probe that asks for more reuses the tests of one that asked for less. The
    bar counts the first `n_tests` of each length or distance.
    """

    def __init__(self, store: Store, by: str, bar: Bar, n_tests: int) -> None:
        self.store = store
        self.by = by
        self.bar = bar
        self.n_tests = n_tests

    def cell(self, value: int) -> str:
        return f"{self.by} {value}"

    def add(self, rows: Iterable[Row]) -> list[Row]:
        """Store rows of lengths or distances, each with the name of its tests, and return them."""
        named = list(rows)
        for row in named:
            if self.by in row:
                row["cell"] = self.cell(row[self.by])
        self.store.add(named)
        return named

    def load(self, value: int) -> dict[int, Row]:
        """Return the finished tests of a length or distance by number, and count them in the bar."""
        tests = {int(number): test for number, test in self.store.tests[self.cell(value)].items()}
        self.bar.count_finished(sum(number < self.n_tests for number in tests))
        return tests

    def save(self, value: int, rows: Mapping[int, Row]) -> None:
        name = self.cell(value)
        self.store.append({"cell": name, self.by: value, "test": test, **row} for test, row in rows.items())
        self.bar.update(len(rows))
