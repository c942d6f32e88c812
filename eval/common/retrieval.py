"""Tests that hide one number in a text and ask for it: how they are grown, run side by side, and scored.

A test passes when the first number in the answer, a run of digits, is the number that was hidden: whole, digit by
digit. What a model says after it does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.common.cases import Case, Writer
from eval.common.results import Results, Row
from eval.common.running import run_tests
from lab.errors import ConfigError
from lab.probe.intervals import share_limits
from lab.probe.protocol import Answers

CONFIDENCE = 0.95
SAMPLE = 64  # numbers differ in tokens; the longest of this many stands for all
NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Outcome:
    """All tests of one cell."""

    records: list[dict[str, Any]]
    seconds: float | None = None

    @property
    def passed(self) -> int:
        """Tests that passed."""
        return sum(record["passed"] for record in self.records)

    @property
    def result(self) -> dict[str, Any]:
        """Sum the tests up: their share that passed, with exact limits, and how long the prompts were."""
        tests, passed = len(self.records), self.passed
        low, high = share_limits(passed, tests, CONFIDENCE)
        tokens = [record["prompt_tokens"] for record in self.records]
        known = {"score": passed / tests, "low": low, "high": high, "confidence": CONFIDENCE, "passed": passed}
        lengths = {"prompt_tokens": {"least": min(tokens), "most": max(tokens)}}
        return {**known, **lengths, "seconds": self.seconds}


def first_number(text: str) -> str | None:
    """Read the first run of digits.

    Example:
        >>> first_number(" 71432. Remember it. 7"), first_number(" I do not know")
        ('71432', None)
    """
    match = NUMBER.search(text)
    return match.group() if match else None


def run_cases(
    subject: Answers,
    case: Callable[[int], Case],
    tests: int,
    *,
    budget: int,
    rows: int,
    started: Results,
    done: Callable[[int], object] = lambda tests: None,
) -> Outcome:
    """Run those of the tests 0 to `tests` that are not finished; `done` hears how many are through."""

    def judge(drawn: Case, answer: str) -> Row:
        (expected,) = drawn.answers
        return {"expected": expected, "answer": answer, "passed": first_number(answer) == expected, **drawn.facts}

    return Outcome(
        *run_tests(subject, case, tests, judge, budget=budget, rows=rows, started=started, done=done),
    )


def draw_key(rng: np.random.Generator, digits: int) -> str:
    """Draw a number of exactly so many digits."""
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def least_budget(writer: Writer, digits: int) -> int:
    """Count the tokens that the longest of a sample of answers takes.

    Raises: DataError for a tokenizer that does not read a number back whole.
    """
    rng = np.random.default_rng(0)
    numbers = [draw_key(rng, digits) for _ in range(SAMPLE)]
    for number in numbers:
        writer.check_spelling([number], lambda text, expected: float(first_number(text) == expected[0]))
    return max(len(writer.spell([number])) for number in numbers)


def answer_budget(writer: Writer, digits: int, wanted: int | None, default: int) -> int:
    """Choose the tokens that are left for the answer: those asked for, or the default, or what the answer takes.

    Raises: ConfigError where an answer does not fit in what is asked for, DataError as `least_budget` does.
    """
    least = least_budget(writer, digits)
    if wanted is not None and wanted < least:
        raise ConfigError(f"--answer_budget={wanted}: a number of {digits} digits takes {least} tokens; raise it")
    return wanted or max(default, least)


def grid_table(scores: Mapping[tuple[str, str], float], corner: str) -> str:
    """Lay a grid of shares out for reading, in percent: a row for each first word, a column for each second.

    Example:
        >>> print(grid_table({("0%", "128"): 1.0, ("0%", "256"): 0.25, ("100%", "128"): 0.5}, "depth"))
        depth          128     256
        0%             100      25
        100%            50       -
    """
    rows, columns = (list(dict.fromkeys(key[axis] for key in scores)) for axis in (0, 1))
    lines = [f"{corner:<10}" + "".join(f"{column:>8}" for column in columns)]
    for row in rows:
        cells: Sequence[float | None] = [scores.get((row, column)) for column in columns]
        lines.append(f"{row:<10}" + "".join(f"{'-' if x is None else format(100 * x, '.0f'):>8}" for x in cells))
    return "\n".join(lines)
