"""Tests that hide one number in a text and ask for it: the number, the tokens of its answer, and the score.

A test passes when the first number in the answer, a run of digits, is the number that was hidden: whole, digit by
digit. What follows it in the answer does not count.

Runs the cells of a measurement that are not finished, and records each test once it is answered.

Needle tests that are finished are kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.cases import TextCase, Writer
from eval.engine.rows import Results, Row, shortened
from eval.engine.subject import Subject, doublings
from lab.data.tokenizer import check_ids
from lab.errors import ConfigError
from lab.probe.effective_length import NeedleProbe, ResultStore, answered
from lab.probe.limits import share_limits

CONFIDENCE = 0.95
SAMPLE = 64  # numbers differ in tokens; the longest of this many is the bound
NUMBER = re.compile(r"[0-9]+")
EIGHTHS = 8  # lengths up to the training window of a model without a probe of its own


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
    """Draw a number of exactly `digits` digits."""
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def answer_budget(writer: Writer, digits: int, default: int) -> int:
    """Count the tokens that are left for the answer: the default, or the longest of a sample of answers.

    Raises: DataError for a tokenizer that does not read a number back whole.
    """
    rng = np.random.default_rng(0)
    numbers = [draw_key(rng, digits) for _ in range(SAMPLE)]
    for number in numbers:
        writer.check_spelling([number], lambda text, expected: float(first_number(text) == expected[0]))
    return max(default, *(len(writer.spell([number])) for number in numbers))


def choose_lengths(asked: Sequence[int] | None, least: int, window: int, longest: int, fixed: str) -> list[int]:
    """Choose lengths with room for `least` tokens, rising: as requested, or powers of two from window / 4 on.

    Raises: ConfigError for a requested length that is too short; `fixed` describes the fixed parts.
    """
    short = [length for length in asked or () if length < least]
    if short:
        raise ConfigError(*(f"--lengths={length}: too short for {fixed}; use {least} or more" for length in short))
    lengths = asked or [length for length in doublings(max(1, window // 4), longest) if length >= least]
    return sorted(set(lengths)) or [1 << (least - 1).bit_length()]


Done = Callable[[int], object]  # called with how many more tests are finished


@dataclass(frozen=True)
class Outcome:
    """The records of all tests of a cell, and the seconds that running all takes; None where none was run."""

    records: list[Row]
    seconds: float | None = None


def run_tests(
    subject: Subject,
    case: Callable[[int], TextCase],
    tests: int,
    judge: Callable[[TextCase, str], Row],
    *,
    budget: int,
    rows: int,
    started: Results,
    done: Done = lambda tests: None,
) -> Outcome:
    """Run those of the tests 0 to `tests` that `started` does not hold, and return all by number.

    `case` draws a test, `judge` scores an answer, `done` is called as tests are finished. Seconds are
    those of the tests run now, scaled up to all of them.

    Raises: ConfigError where a test cannot be written, DataError for a tokenizer that is not the model's.
    """

    def checked(index: int) -> TextCase:
        drawn = case(index)
        check_ids(drawn.prompt_ids, subject.vocab_size)
        return drawn

    known = {row["test"]: row for row in started if row["test"] < tests}
    done(len(known))
    began, before = time.perf_counter(), len(known)
    todo = ((index, checked(index)) for index in range(tests) if index not in known)
    for batch in answered(subject.generate, subject.tokenizer, subject.stop_id, todo, budget=budget, rows=rows):
        fresh: dict[int, Row] = {}
        for index, drawn, answer in batch:
            named = {"test": index, "prompt_hash": drawn.prompt_hash, "prompt_tokens": len(drawn.prompt_ids)}
            fresh[index] = {**named, **judge(drawn, answer)}
        started.append(fresh.values())
        known |= fresh
        done(len(fresh))
    ran = tests - before
    seconds = round((time.perf_counter() - began) * tests / ran, 3) if ran else None
    return Outcome([known[index] for index in range(tests)], seconds)


class FinishedTests(Results, ResultStore):
    """The finished needle tests of one key, in tests-TOKENS-KEY.jsonl; the file's first line holds the key.

    The key holds all that decides a test's outcome: checkpoint, position methods, protocol, text, seed. How many tests
    there are, at which lengths, and what passes is not in it: a probe that asks for more reuses the tests of one that
    asked for less. `by` is the field of a test's length or distance. `report` is called with the number of tests just
    added.
    """

    def __init__(self, folder: Path, consumed_tokens: int, key: Mapping[str, Any], by: str = "length") -> None:
        digest = shortened(json.dumps(key, sort_keys=True))
        super().__init__(folder / f"tests-{consumed_tokens:015d}-{digest}.jsonl", (by, "test"))
        self.by = by
        self.report: Done = lambda tests: None
        if not self.kept:
            self.append([{"key": dict(key)}])

    def known(self, length: int) -> Mapping[int, Row]:
        """Return the finished tests of a length by number."""
        return {row["test"]: row for row in self if row.get(self.by) == length}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Add finished tests; they are on the disk when this returns."""
        self.append({self.by: length, "test": test, **row} for test, row in rows.items())
        self.report(len(rows))


def finished_tests(subject: Subject, probe: NeedleProbe, folder: Path) -> FinishedTests:
    """Open the file of the model's finished tests.

    Raises: LabError.
    """
    key = {
        "weights": subject.weights if subject.saved is None else subject.saved.digest,
        "method": subject.model.method,
        "precision": "bf16" if subject.precision == "bfloat16" else "fp32",
        "device": subject.device.type,
        "protocol": probe.config.protocol,
        "needles": probe.config.needles,
        "digits": probe.config.digits,
        "answer_budget": probe.config.budget,
        "haystack": hashlib.sha256(probe.haystack.encode()).hexdigest(),
        "shortest_prompt": probe.case(probe.shortest(), 0).prompt_hash,  # names the tokenizer and how cases are drawn
        "seed": probe.config.seed,
    }
    return FinishedTests(folder, subject.model.consumed_tokens or 0, key)


def own_lengths(subject: Subject, probe: NeedleProbe) -> list[int]:
    """List the lengths that the run probes, up to its training window where it names no last one.

    Eighths of the training window for a Hugging Face folder. The first with room for a test where there is none.
    """
    experiment, shortest = subject.model.experiment, probe.shortest()
    longest = subject.model.train_len or shortest
    step = max(1, longest // EIGHTHS)
    if experiment is not None:
        step, longest = experiment.probe.step, experiment.probe.max_length or longest
    first = -(-shortest // step) * step
    return list(range(first, longest + 1, step)) or [first]
