"""Puts the tests of one cell to a model, prompts of one length side by side, and keeps each once it is through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from eval.common.cases import Case
from eval.common.results import Results, Row
from lab.errors import DataError
from lab.probe.protocol import Answers

Numbered = tuple[int, Case]


def run_tests(
    subject: Answers,
    case: Callable[[int], Case],
    tests: int,
    judge: Callable[[Case, str], Row],
    *,
    budget: int,
    rows: int,
    started: Results,
    done: Callable[[int], object] = lambda tests: None,
) -> tuple[list[Row], float | None]:
    """Run those of the tests 0 to `tests` that `started` does not know, and return all by number.

    `case` draws a test, `judge` says what came of its answer, which ends before the stop token; `done` hears how many
    are through. Also returned are the seconds that a run of all tests takes: those of the tests run now, scaled
    up to all of them; None where none was run.

    Raises: ConfigError where a test cannot be written down, DataError for a tokenizer that is not the model's.
    """
    stop_id = subject.stop_id

    def checked(index: int) -> Case:
        return check_ids(case(index), subject.vocab_size)

    known = {row["test"]: row for row in started if row["test"] < tests}
    done(len(known))
    began, before = time.perf_counter(), len(known)
    for group in groups(((index, checked(index)) for index in range(tests) if index not in known), rows):
        prompts = torch.from_numpy(np.stack([drawn.prompt_ids for _, drawn in group]).astype(np.int64))
        fresh: dict[int, Row] = {}
        for (index, drawn), ids in zip(group, subject.generate(prompts, budget).tolist(), strict=True):
            answer = subject.tokenizer.decode(ids[: ids.index(stop_id)] if stop_id in ids else ids)
            named = {"test": index, "prompt_hash": drawn.prompt_hash, "prompt_tokens": len(drawn.prompt_ids)}
            fresh[index] = {**named, **judge(drawn, answer)}
        started.append(fresh.values())
        known |= fresh
        done(len(group))
    ran = tests - before
    seconds = round((time.perf_counter() - began) * tests / ran, 3) if ran else None
    return [known[index] for index in range(tests)], seconds


def check_ids(case: Case, vocab_size: int) -> Case:
    """Refuse a tokenizer with more tokens than the model knows.

    Raises: DataError.
    """
    if int(case.prompt_ids.max()) >= vocab_size:
        raise DataError(f"tokenizer.json: has more ids than the model's {vocab_size}; give the model's own tokenizer")
    return case


def groups(cases: Iterable[Numbered], rows: int) -> Iterator[list[Numbered]]:
    """Gather cases of one length, as the key cache takes no padding."""
    waiting: dict[int, list[Numbered]] = {}
    for numbered in cases:
        group = waiting.setdefault(len(numbered[1].prompt_ids), [])
        group.append(numbered)
        if len(group) == rows:
            yield waiting.pop(len(numbered[1].prompt_ids))
    yield from waiting.values()
