"""Effective context length: four-needle tests at growing lengths, until one fails.

A length passes when at least `threshold` of its tests find `required` numbers or more. The effective length is the last
length before the first that fails (arXiv:2410.18745, section 3). That section states no threshold: 0.8 is ours. The
outcome is a function of (model, seed, length) alone: test k of a length is sampled from (seed, length, k).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from tokenizers import Tokenizer

from lab.core.errors import ConfigError
from lab.core.types import CONFIDENCE, Row
from lab.counts import Counted, f_at
from lab.data import synthetic
from lab.probe import needles, released_needles
from lab.probe.config import ProbeConfig
from lab.probe.limits import LengthResult
from lab.probe.needles import NeedleCase, hash_text
from lab.probe.probe import Probe, ProbedModel, TestKey, Worker
from lab.probe.reach import effective_lengths


@dataclass(eq=False, repr=False)
class NeedleProbe(Probe[NeedleCase]):
    """The four-needle tests of one model."""

    by = "length"

    def __post_init__(self) -> None:
        """Check the settings, and choose the lengths.

        Raises: ConfigError, DataError.
        """
        tokenizer = self.tokenizer
        self.config = config = set_answer_budget(self.config, tokenizer)
        self.tests = config.tests
        self.budget, self.required = config.budget, config.required
        self.protocol = select_protocol(config)
        numbers = synthetic.sample_numbers(np.random.default_rng(config.seed), 16, config.digits)
        passes = lambda text: self.protocol.count_found(text, numbers) == len(numbers)  # noqa: E731
        needles.check_encoding(tokenizer, synthetic.answer(numbers), numbers, passes)
        tokens = count_answer_tokens(config, tokenizer)
        errors = []
        if config.budget < tokens:
            errors.append(
                f"probe.answer_budget={config.budget}: an answer of {config.needles} numbers takes {tokens} tokens; "
                "raise it"
            )
        self.shortest = self.protocol.shortest(config, tokenizer)
        self.lengths = config.lengths(self.shortest, self.window)
        if not self.lengths:
            errors.append(
                f"probe.max_length={config.longest(self.window)}: no multiple of probe.step={config.step} up to it has "
                f"room for a test, {self.shortest} tokens; raise probe.max_length or lower probe.step"
            )
        if errors:
            raise ConfigError(*errors)

    def check_haystack(self, length: int) -> None:
        """Reject a file whose text a test of this length would repeat, with a DataError."""
        n_tokens = length - self.shortest + self.config.needles
        needles.check_enough(self.haystack, self.tokenizer, n_tokens, length, self.source)

    def case(self, length: int, test: int) -> NeedleCase:
        case: NeedleCase = self.protocol.sample_case(self.config, self.tokenizer, self.haystack, length, test)
        return case

    def run(self, model: ProbedModel, worker: Worker = Worker()) -> Iterator[LengthResult]:
        """Probe length after length: all up to `max_length`, or, without one, until a length fails."""
        # Ranks divide the tests of 4 lengths. Of more, those with the longest prompts would be waited for.
        at_once = 1 if self.config.max_length is None else min(4, worker.world_size)
        for start in range(0, len(self.lengths), at_once):
            results = self.run_together(model, self.lengths[start : start + at_once], worker)
            yield from results
            if self.config.max_length is None and results[-1].accuracy < self.config.threshold:
                return

    def is_decided(self, case: NeedleCase, text: str) -> bool:
        """Return whether a text has all numbers, and keeps them with any continuation.

        A number at the end of the text does not count: more digits would make it another one. A text that lacks a
        number is never decided, as a later token may complete it, which `found_each` records.
        """
        complete = needles.UNFINISHED.sub("", text)
        return bool(self.protocol.count_found(complete, case.numbers) == len(case.numbers))

    def score_answers(
        self, model: ProbedModel, batch: Sequence[tuple[TestKey, NeedleCase, str]]
    ) -> Iterator[tuple[TestKey, Row]]:
        """Count the numbers in each answer."""
        for test, case, answer in batch:
            found_each = [self.protocol.count_found(answer, [number]) == 1 for number in case.numbers]
            yield (
                test,
                {
                    "prompt_hash": case.prompt_hash,
                    "numbers": case.numbers,
                    "depths": [round(depth, 6) for depth in case.depths],
                    "distances": case.distances,
                    "answer": answer,
                    "found": sum(found_each),
                    "found_each": found_each,
                },
            )

    def describe_tests(self) -> Row:
        """Return the properties of the tests, apart from their lengths."""
        config = self.config
        return {
            "protocol": config.protocol,
            "needles": config.needles,
            "digits": config.digits,
            "required": config.required,
            "answer_budget": config.budget,
            "haystack": hash_text(self.haystack),
            "seed": config.seed,
        }

    def describe_outcome(self, result: LengthResult) -> Row:
        """Return the columns of four-needle tests; two are the same as the common `n` and `score`."""
        return {"tests": result.tests, "passed": result.passed, "accuracy": result.accuracy}

    def summarize(self, results: Sequence[LengthResult], origin: Row, counts: Counted | None) -> Row:
        """Build the summary line of a probe; a limit is null if the true value may lie beyond the last length."""
        seconds = [result.seconds for result in results if result.seconds is not None]
        values = effective_lengths(results, self.config.threshold)
        length = values["effective_length"]
        return {
            **origin,
            **values,
            "f_at_effective_length": None if length is None else f_at(counts, int(length)),
            "confidence": CONFIDENCE,
            "tests": sum(result.tests for result in results),
            **self.describe_tests(),
            "seconds": round(sum(seconds), 3) if seconds else None,
        }


def count_answer_tokens(config: ProbeConfig, tokenizer: Tokenizer) -> int:
    return len(needles.plain_ids(tokenizer, synthetic.answer(["8" * config.digits] * config.needles)))


def set_answer_budget(config: ProbeConfig, tokenizer: Tokenizer) -> ProbeConfig:
    """Set an answer budget that the user did not set: enough for the numbers in the tokenizer."""
    if config.answer_budget is not None or config.protocol != "ours":
        return config
    return replace(config, answer_budget=max(config.budget, count_answer_tokens(config, tokenizer)))


def select_protocol(config: ProbeConfig) -> ModuleType:
    """Choose the module that samples a protocol's tests and counts the numbers that an answer has."""
    return needles if config.protocol == "ours" else released_needles
