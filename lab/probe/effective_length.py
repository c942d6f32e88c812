"""Effective context length: four-needle tests at growing lengths, until one fails.

A length passes when at least `threshold` of its tests find `required` numbers or more; the effective length is the
last length before the first that fails (arXiv:2410.18745, section 3, which states no threshold: 0.8 is ours).
The outcome is a function of (model, seed, length) alone: test k of a length is drawn from (seed, length, k), and tests
run in this order, so that a sequential probe runs the first tests of a full one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer

from lab.data import synthetic
from lab.data.synthetic import draw_numbers
from lab.errors import ConfigError
from lab.model import devices
from lab.probe.answering import Decided, Generates, answered
from lab.probe.config import ProbeConfig
from lab.probe.curve import LengthResult
from lab.probe.haystacks import check_enough
from lab.probe.intervals import Design, exact_limits, full_design, sequential_design, share_limits
from lab.probe.needles import NeedleCase, check_spelling
from lab.probe.protocols import PROTOCOLS, shortest_test

SPELLED = 16  # numbers that a tokenizer must decode unchanged
Gather = Callable[[list[Any]], list[Any]]
Row = dict[str, Any]
Judge = Callable[[list[tuple[int, Any, str]]], Iterable[tuple[int, Row]]]  # of the answers of a batch


@dataclass(frozen=True)
class Worker:
    """One of the processes that run the tests of a probe; `gather` joins the lists of all, a collective call."""

    rank: int = 0
    world_size: int = 1
    gather: Gather = list

    def dealt(self, cases: Iterable[tuple[int, NeedleCase]]) -> Iterable[tuple[int, NeedleCase]]:
        """Exchange what the processes have drawn, so that each answers prompts of few lengths; a collective call.

        Prompts of one length are answered side by side, and in the released protocol lengths differ.
        """
        if self.world_size == 1:
            return cases
        every = sorted(self.gather(list(cases)), key=lambda drawn: (len(drawn[1].prompt_ids), drawn[0]))
        first, last = (len(every) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return every[first:last]


class ResultStore:
    """Where results of tests are kept and looked up; this one keeps none."""

    def known(self, length: int) -> Mapping[int, Row]:
        """Return the rows of finished tests of a length by test number, the same on every rank."""
        return {}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Store the rows of tests that this process has just finished."""


@dataclass(eq=False, repr=False)
class Probe(ABC):
    """The settings, tokenizer and text that the tests of one model are drawn from, and how they are run.

    `by` names what tests differ by, their length or their distance. `source` is the setting that names the haystack's
    file; None for text of the corpus.

    Units: `window`, the training window, in tokens.
    """

    config: ProbeConfig
    tokenizer: Tokenizer
    haystack: str
    _: KW_ONLY
    window: int
    stop_id: int | None
    device: torch.device | str = "cpu"
    source: str | None = None
    by: ClassVar[str]

    @property
    def rows(self) -> int:
        """Most tests that generate together."""
        return self.config.rows(devices.kind(torch.device(self.device)))

    @property
    @abstractmethod
    def design(self) -> Design:
        """Where the tests of a length or distance stop."""

    @property
    @abstractmethod
    def budget(self) -> int:
        """Tokens that are left for the answer."""

    @abstractmethod
    def case(self, length: int, test: int) -> NeedleCase:
        """Draw one test of a length or distance."""

    def run_at(
        self,
        generate: Generates,
        length: int,
        judge: Judge,
        worker: Worker,
        store: ResultStore,
        *,
        required: int,
        decided: Decided[Any] | None = None,
    ) -> LengthResult:
        """Run the tests of a length or distance round after round until the design stops; a collective call.

        A round has the same tests on any number of ranks, and ends with all of them.
        """
        known, passed, ran, began = store.known(length), 0, 0, time.perf_counter()
        rows: list[Row] = []
        for look in self.design.looks:
            tests = range(len(rows), look)
            fresh: list[tuple[int, Row]] = []
            todo = [test for test in tests if test not in known][worker.rank :: worker.world_size]
            cases = worker.dealt((test, self.case(length, test)) for test in todo)
            asked = generate, self.tokenizer, self.stop_id, cases
            for batch in answered(*asked, budget=self.budget, rows=self.rows, device=self.device, decided=decided):
                done = list(judge(batch))
                store.keep(length, dict(done))
                fresh += done
            joined = dict(worker.gather(fresh))
            ran += len(joined)
            rows += [{self.by: length, "test": test, **(known.get(test) or joined[test])} for test in tests]
            passed = sum(row["found"] >= required for row in rows)
            if self.design.is_over(look, passed):
                break
        limits = share_limits(passed, len(rows), self.config.confidence)
        if len(self.design.looks) > 1:
            limits = exact_limits(self.design, len(rows), passed, self.config.confidence)
        seconds = round((time.perf_counter() - began) * len(rows) / ran, 3) if ran else None
        return LengthResult(length, len(rows), passed, rows, *limits, seconds)


@dataclass(eq=False, repr=False)
class NeedleProbe(Probe):
    """Draws, runs and scores the four-needle tests of one model."""

    by = "length"

    def __post_init__(self) -> None:
        """Check the settings, and choose the lengths.

        Raises: ConfigError, DataError.
        """
        config, window, tokenizer = self.config, self.window, self.tokenizer
        self.needles, self.digits, self.seed = config.needles, config.digits, config.seed
        self.protocol = PROTOCOLS[config.protocol]
        numbers = draw_numbers(np.random.default_rng(self.seed), SPELLED, self.digits)
        for k in range(0, SPELLED, self.needles):
            part = numbers[k : k + self.needles]
            check_spelling(tokenizer, synthetic.answer(part), part, partial(self.finds_all, part))
        answer = synthetic.answer(["8" * self.digits] * self.needles)
        tokens = len(tokenizer.encode(answer, add_special_tokens=False).ids)
        if self.budget < tokens:
            rule = f"an answer of {self.needles} numbers takes {tokens} tokens; raise it"
            raise ConfigError(f"probe.answer_budget={self.budget}: {rule}")
        self.lengths = config.lengths(self.shortest(), window)
        if not self.lengths:
            raise ConfigError(
                f"probe.max_length={config.max_length or 4 * window}: no multiple of probe.step={config.step} up to it "
                f"has room for a test, {self.shortest()} tokens; raise probe.max_length or lower probe.step"
            )

    def check_haystack(self, length: int) -> None:
        """Refuse a file whose text a test of this length would repeat.

        Raises: DataError.
        """
        if self.source is not None:
            check_enough(self.haystack, self.tokenizer, length - self.shortest() + self.needles, length, self.source)

    def finds_all(self, numbers: list[str], text: str) -> bool:
        """Return whether a text holds all of some numbers."""
        return self.protocol.found(text, numbers) == len(numbers)

    def shortest(self) -> int:
        """Count the tokens of the shortest test."""
        return shortest_test(self.config, self.tokenizer)

    @property
    def budget(self) -> int:
        """Tokens that are left for the answer."""
        return self.config.budget

    @cached_property
    def design(self) -> Design:
        """Where the tests of a length stop."""
        config = self.config
        if not config.sequential:
            return full_design(config.tests, config.all_thresholds)
        return sequential_design(config.tests, config.all_thresholds, config.error_rate, config.round_size)

    def case(self, length: int, test: int) -> NeedleCase:
        """Draw one test of a length."""
        draws = self.protocol.draw(self.seed, length, test)
        return self.protocol.make_case(
            self.tokenizer, self.haystack, length, self.budget, draws, digits=self.digits, needles=self.needles
        )

    def cases(self, length: int) -> list[NeedleCase]:
        """Draw all tests of a length."""
        return [self.case(length, test) for test in range(self.config.tests)]

    def run(
        self, model: Generates, worker: Worker = Worker(), store: ResultStore = ResultStore()
    ) -> Iterator[LengthResult]:
        """Probe length after length: all up to `max_length`, or, without one, until a length fails every threshold."""
        for length in self.lengths:
            result = self.run_length(model, length, worker, store)
            yield result
            if self.config.max_length is None and result.accuracy < self.config.all_thresholds[0]:
                return

    def run_length(
        self, model: Generates, length: int, worker: Worker = Worker(), store: ResultStore = ResultStore()
    ) -> LengthResult:
        """Run the tests of one length; a collective call."""
        required = self.config.required
        return self.run_at(model, length, self.judged, worker, store, required=required, decided=self.decided)

    def decided(self, case: NeedleCase, text: str) -> bool:
        """Return whether a text holds all numbers, whatever follows it: more digits would make one another number.

        A text that lacks a number is never decided, as a later token may complete it, which `found_each` records.
        """
        return self.finds_all(case.numbers, text.rstrip("0123456789"))

    def judged(self, batch: Sequence[tuple[int, NeedleCase, str]]) -> Iterator[tuple[int, Row]]:
        """Count the numbers in the answers of a batch."""
        return ((test, self.judge(case, answer)) for test, case, answer in batch)

    def judge(self, case: NeedleCase, answer: str) -> Row:
        """Count the numbers in an answer."""
        return {
            "prompt_hash": case.prompt_hash,
            "numbers": case.numbers,
            "depths": [round(depth, 6) for depth in case.depths],
            "distances": case.distances,
            "answer": answer,
            "found": self.protocol.found(answer, case.numbers),
            "found_each": [self.protocol.found(answer, [number]) == 1 for number in case.numbers],
        }
