"""Tests that hide one number in a text and ask for it: the number, the tokens of its answer, and the score.

A test passes when the first number in the answer, a run of digits, is the number that was hidden: whole, digit by
digit. What follows it in the answer does not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from eval.common.cases import TextCase, Writer
from eval.common.results import Row
from eval.common.running import Outcome
from eval.common.subject import doublings
from lab.errors import ConfigError
from lab.probe.intervals import share_limits

CONFIDENCE = 0.95
SAMPLE = 64  # numbers differ in tokens; the longest of this many stands for all
NUMBER = re.compile(r"[0-9]+")


def summed(outcome: Outcome) -> Row:
    """Summarize the tests of a cell: the share passed, with exact limits, and the prompts' lengths."""
    tests, passed = len(outcome.records), sum(record["passed"] for record in outcome.records)
    low, high = share_limits(passed, tests, CONFIDENCE)
    tokens = [record["prompt_tokens"] for record in outcome.records]
    known = {"score": passed / tests, "low": low, "high": high, "confidence": CONFIDENCE, "passed": passed}
    lengths = {"prompt_tokens": {"least": min(tokens), "most": max(tokens)}}
    return {**known, **lengths, "seconds": outcome.seconds}


def first_number(text: str) -> str | None:
    """Read the first run of digits.

    Example:
        >>> first_number(" 71432. Remember it. 7"), first_number(" I do not know")
        ('71432', None)
    """
    match = NUMBER.search(text)
    return match.group() if match else None


def judge(drawn: TextCase, answer: str) -> Row:
    """Return whether an answer's first number is the hidden one."""
    (expected,) = drawn.answers
    return {"expected": expected, "answer": answer, "passed": first_number(answer) == expected, **drawn.facts}


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


def choose_lengths(asked: Sequence[int] | None, least: int, window: int, longest: int, fixed: str) -> list[int]:
    """Choose lengths with room for `least` tokens, rising: those asked for, or powers of two from window / 4 on.

    Raises: ConfigError for a length that is asked for and too short; `fixed` describes the fixed parts.
    """
    short = [length for length in asked or () if length < least]
    if short:
        raise ConfigError(*(f"--lengths={length}: too short for {fixed}; use {least} or more" for length in short))
    lengths = asked or [length for length in doublings(max(1, window // 4), longest) if length >= least]
    return sorted(set(lengths)) or [1 << (least - 1).bit_length()]
