"""Effective context length: four-needle tests at growing lengths, until one fails.

A length passes when at least `threshold` of its tests find `required` numbers or more; the effective length is the
last length before the first that fails (papers/string.txt, section 3; the threshold is ours, methods.md section 1).
The outcome is a function of (model, seed, length) alone: test k of a length draws everything from (seed, length, k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from eval.config import ProbeConfig
from eval.needles import Case, fixed_parts, found, make_case
from eval.protocol import Generates
from lab.data import wording
from lab.data.synthetic import draw_numbers
from lab.errors import ConfigError

SAMPLE_NUMBERS = 64  # numbers differ in tokens; the longest of this many stands for all
Gather = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class LengthResult:
    """All tests of one length; `cases` has every test's numbers, depths and answer."""

    length: int
    tests: int
    passed: int
    cases: list[dict[str, Any]]

    @property
    def accuracy(self) -> float:
        """Share of tests that passed."""
        return self.passed / self.tests


@dataclass(frozen=True)
class Share:
    """Which tests this process runs, and how it hears of the others': a collective call that joins their lists.

    `lockstep` keeps every rank at the same number of forward passes, as a sharded model needs.
    """

    rank: int = 0
    world_size: int = 1
    gather: Gather = list
    lockstep: bool = False


class NeedleProbe:
    """Draws, runs and judges the tests of one run."""

    def __init__(
        self,
        config: ProbeConfig,
        tokenizer: Tokenizer,
        haystack: str,
        *,
        seed: int,
        window: int,
        stop_id: int | None,
        device: torch.device | str = "cpu",
    ) -> None:
        assert config.needles is not None, "the config reader fills it in"
        assert config.digits is not None, "the config reader fills it in"
        self.config, self.tokenizer, self.haystack = config, tokenizer, haystack
        self.needles, self.digits = config.needles, config.digits
        self.seed, self.window, self.stop_id, self.device = seed, window, stop_id, device
        self.check_budget()
        self.lengths = config.lengths(self.shortest(), window)
        if not self.lengths:
            raise ConfigError(
                f"probe.max_length={config.max_length or 4 * window}: no multiple of probe.step={config.step} up to it "
                f"has room for a test, {self.shortest()} tokens; raise probe.max_length or lower probe.step"
            )

    def check_budget(self) -> None:
        """Refuse a budget in which the numbers themselves do not fit.

        Raises: ConfigError.
        """
        answer = wording.answer(["8" * self.digits] * self.needles)
        tokens = len(self.tokenizer.encode(answer, add_special_tokens=False).ids)
        if self.config.answer_budget < tokens:
            raise ConfigError(
                f"probe.answer_budget={self.config.answer_budget}: an answer of {self.needles} numbers takes "
                f"{tokens} tokens; raise it"
            )

    def shortest(self) -> int:
        """Tokens of the shortest test: all fixed parts, with long numbers, and one token of haystack per needle."""
        numbers = draw_numbers(np.random.default_rng(self.seed), SAMPLE_NUMBERS, self.digits)
        head, planted, tail = fixed_parts(self.tokenizer, numbers)
        needle = max(map(len, planted)) + 1
        return len(head) + self.needles * needle + len(tail) + self.config.answer_budget

    def case(self, length: int, test: int) -> Case:
        """Draw one test of a length."""
        generator = np.random.default_rng([self.seed, length, test])
        budget = self.config.answer_budget
        return make_case(
            self.tokenizer, self.haystack, length, budget, generator, digits=self.digits, needles=self.needles
        )

    def cases(self, length: int) -> list[Case]:
        """Draw all tests of a length."""
        return [self.case(length, test) for test in range(self.config.tests)]

    def run(self, model: Generates, share: Share = Share()) -> Iterator[LengthResult]:
        """Probe length after length: all up to `max_length`, or, without one, until a length fails."""
        for length in self.lengths:
            result = self.run_length(model, length, share)
            yield result
            if self.config.max_length is None and result.accuracy < self.config.threshold:
                return

    def run_length(self, model: Generates, length: int, share: Share) -> LengthResult:
        """Run this process's share of a length's tests and join the results; a collective call."""
        tests = self.config.tests
        mine = list(range(share.rank, tests, share.world_size))
        idle = -(-tests // share.world_size) - len(mine) if share.lockstep else 0
        todo = mine + [0] * idle  # what an idle rank runs for company is not counted
        rows = []
        for start in range(0, len(todo), self.config.batch):
            part = [(test, self.case(length, test)) for test in todo[start : start + self.config.batch]]
            prompts = torch.tensor([case.prompt_ids for _, case in part], device=self.device)
            answers = model(prompts, self.config.answer_budget).tolist()
            rows += [(test, self.judge(case, ids)) for (test, case), ids in zip(part, answers, strict=True)]
        joined = dict(share.gather(rows[: len(mine)]))
        records = [{"length": length, "test": test, **joined[test]} for test in sorted(joined)]
        passed = sum(record["found"] >= self.config.required for record in records)
        return LengthResult(length, len(records), passed, records)

    def judge(self, case: Case, ids: list[int]) -> dict[str, Any]:
        """Read an answer up to the end of the document and count the numbers in it."""
        if self.stop_id in ids:
            ids = ids[: ids.index(self.stop_id)]
        answer = self.tokenizer.decode(ids)
        return {
            "prompt_hash": case.prompt_hash,
            "numbers": case.numbers,
            "depths": [round(depth, 6) for depth in case.depths],
            "answer": answer,
            "found": found(answer, case.numbers),
        }


def effective_length(results: Sequence[LengthResult], threshold: float) -> int:
    """Return the last length before the first one that fails; 0 if that is the first of all.

    Example:
        >>> curve = [LengthResult(128, 10, 9, []), LengthResult(256, 10, 8, []), LengthResult(384, 10, 7, [])]
        >>> effective_length(curve, threshold=0.8)
        256
    """
    length = 0
    for result in results:
        if result.accuracy < threshold:
            break
        length = result.length
    return length


def length_record(result: LengthResult, consumed_tokens: int, method: str, seed: int) -> dict[str, Any]:
    """Make the line of probes.jsonl for one probed length."""
    return {
        "consumed_tokens": consumed_tokens,
        "length": result.length,
        "tests": result.tests,
        "passed": result.passed,
        "accuracy": result.accuracy,
        "method": method,
        "seed": seed,
    }


def summary_record(results: Sequence[LengthResult], consumed_tokens: int, threshold: float) -> dict[str, Any]:
    """Make the line of probes.jsonl for one whole probe."""
    return {
        "consumed_tokens": consumed_tokens,
        "effective_length": effective_length(results, threshold),
        "threshold": threshold,
    }
