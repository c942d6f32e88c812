"""A probe: tests of a model at rising lengths or distances, from prompts to results.

    Probe.case -> answer_cases -> Probe.score_answers -> LengthResult -> record

`Probe` runs tests and knows nothing of their prompts. `lab.probe.effective_length` has the four-needle tests,
`lab.probe.effective_distance` the one-number tests. Reach is computed from the results (lab.probe.reach).
"""

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import product
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lab.core.types import CONFIDENCE, Row
from lab.counts import Counted, f_at
from lab.model import devices
from lab.model.generate import Ended
from lab.probe.config import ProbeConfig
from lab.probe.limits import LengthResult, share_limits
from lab.probe.needles import Case, NeedleCase

LOOK_EVERY = 8  # new tokens between two checks of what the rows of a batch have answered
Key = TypeVar("Key")
AnyCase = TypeVar("AnyCase", bound=Case)
AnyNeedleCase = TypeVar("AnyNeedleCase", bound=NeedleCase)
IsDecided = Callable[[AnyCase, str], bool]
TestKey = tuple[int, int]
"""A length or distance, and the number of a test of it."""


class ProbedModel(Protocol):
    """A model as tests use it."""

    def generate(self, prompts: Tensor, n_tokens: int, ended: Ended | None = None) -> Tensor:
        """Continue prompts, int64 (B, T), greedily by at most n_tokens: int64 (B, n); `ended` may end rows early."""

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute each target's loss in nats: int64 (B, T) both -> (B, T)."""


def answer_cases(
    model: Callable[..., Tensor],
    tokenizer: Tokenizer,
    stop_id: int | None,
    cases: Iterable[tuple[Key, AnyCase]],
    *,
    budget: int,
    rows: int,
    device: torch.device | str = "cpu",
    is_decided: IsDecided[AnyCase] | None = None,
) -> Iterator[list[tuple[Key, AnyCase, str]]]:
    """Answer numbered cases, up to `rows` at a time, in `budget` tokens each; an answer ends before the stop token.

    With `is_decided`, an answer ends with the token after which it is true, and the model may end it there. If it is
    true for a text, it must be true for every text that begins with it.
    """
    for batch in batch_by_length(cases, rows):
        batch_cases = [case for _, case in batch]
        prompts = torch.from_numpy(np.array([case.prompt_ids for case in batch_cases], dtype=np.int64))
        generate = model
        if is_decided is not None:
            generate = partial(model, ended=partial(find_decided, tokenizer, is_decided, batch_cases))
        answers = []
        for (number, case), row in zip(batch, generate(prompts.to(device), budget).tolist()):
            ids = row[: row.index(stop_id)] if stop_id in row else row
            answers.append((number, case, decode_answer(tokenizer, ids, case, is_decided)))
        yield answers


def find_decided(
    tokenizer: Tokenizer, is_decided: IsDecided[AnyCase], cases: Sequence[AnyCase], answers: Tensor, rows: Tensor
) -> Tensor:
    """Find which answers are decided, at every LOOK_EVERY-th token: int64 (rows, n), int64 (rows,) -> bool (rows,)."""
    if answers.shape[1] % LOOK_EVERY:
        return torch.zeros(len(rows), dtype=torch.bool)
    texts = tokenizer.decode_batch(answers.tolist())
    return torch.tensor([is_decided(cases[row], text) for row, text in zip(rows.tolist(), texts)])


def decode_answer(tokenizer: Tokenizer, ids: list[int], case: AnyCase, is_decided: IsDecided[AnyCase] | None) -> str:
    """Decode an answer up to the token after which it is decided, if it is."""
    text: str = tokenizer.decode(ids)
    if is_decided is None or not is_decided(case, text):
        return text
    # Generation ends a row at one of several tokens, by the size of its batch. The first decided token does not depend
    # on that. As a decided text stays decided, bisection finds it.
    last = bisect_left(range(len(ids)), True, key=lambda index: is_decided(case, tokenizer.decode(ids[: index + 1])))
    return str(tokenizer.decode(ids[: last + 1]))


def batch_by_length(cases: Iterable[tuple[Key, AnyCase]], rows: int) -> Iterator[list[tuple[Key, AnyCase]]]:
    """Batch cases whose prompts have the same length, because the key cache takes no padding."""
    waiting: dict[int, list[tuple[Key, AnyCase]]] = {}
    for number, case in cases:
        length = len(case.prompt_ids)
        waiting.setdefault(length, []).append((number, case))
        if len(waiting[length]) == rows:
            yield waiting.pop(length)
    yield from waiting.values()


@dataclass
class Worker:
    """One of the processes that run the tests of a probe; `gather` joins the lists of all, a collective call.

    It may store results, so that a later call need not run their tests; this one stores nothing.
    """

    rank: int = 0
    world_size: int = 1
    gather: Callable[[list[Any]], list[Any]] = list

    def load(self, value: int) -> Mapping[int, Row]:
        """Return the finished tests of a length or distance by test number, the same on every rank."""
        return {}

    def save(self, value: int, rows: Mapping[int, Row]) -> None:
        """Store the rows of tests that this process has just finished."""


@dataclass(eq=False, repr=False)
class Probe(ABC, Generic[AnyNeedleCase]):
    """Tests of one model, sampled from settings, a tokenizer and a text, at several lengths or distances.

    `by` names what tests differ by, their length or their distance; `value` is one of these. `source` is the setting
    that names the haystack's file; None for text of the corpus.

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
    is_decided: ClassVar[Callable[..., bool] | None] = None  # whether no further token can change an answer's score
    tests: int = field(init=False)  # of each length or distance
    budget: int = field(init=False)  # tokens that are left for the answer
    required: int = field(init=False)  # numbers that must be found for a test to pass

    @abstractmethod
    def case(self, value: int, test: int) -> AnyNeedleCase:
        """Sample a test of a length or distance; a function of the seed, the value and the test's number."""

    @abstractmethod
    def score_answers(
        self, model: ProbedModel, batch: Sequence[tuple[TestKey, AnyNeedleCase, str]]
    ) -> Iterable[tuple[TestKey, Row]]:
        """Score numbered answers; each row has `found`, the number of numbers found."""

    @abstractmethod
    def run(self, model: ProbedModel, worker: Worker = Worker()) -> Iterator[LengthResult]:
        """Run the tests of all lengths or distances; a collective call."""

    @abstractmethod
    def describe_tests(self) -> Row:
        """Return the properties of the tests, apart from their lengths or distances."""

    @abstractmethod
    def describe_outcome(self, result: LengthResult) -> Row:
        """Return what a line has besides the columns that are common to all probes."""

    def record(self, result: LengthResult, origin: Row, counts: Counted | None) -> Row:
        """Build the line of one length or distance.

        `f` is how often training had seen it as a distance when it was probed, null if that was not counted.
        """
        return {
            **origin,
            self.by: result.length,
            **self.describe_outcome(result),
            "n": result.tests,
            "score": result.accuracy,
            "low": result.low,
            "high": result.high,
            "confidence": CONFIDENCE,
            "f": f_at(counts, result.length),
            **self.describe_tests(),
            "seconds": result.seconds,
        }

    def run_at(self, model: ProbedModel, value: int, worker: Worker = Worker()) -> LengthResult:
        """Run the tests of one length or distance; a collective call."""
        return self.run_together(model, [value], worker)[0]

    def run_together(self, model: ProbedModel, values: Sequence[int], worker: Worker) -> list[LengthResult]:
        """Run the tests of lengths or distances; a collective call."""
        finished = {value: worker.load(value) for value in values}
        tests = list(product(values, range(self.tests)))
        unfinished = [(value, test) for value, test in tests if test not in finished[value]]
        start = time.perf_counter()
        fresh = dict(worker.gather(self.run_share(model, unfinished, worker)))
        # Stored tests took no time now. They count as those that were run.
        seconds = round((time.perf_counter() - start) * self.tests / len(fresh), 3) if fresh else None
        rows: dict[int, list[Row]] = defaultdict(list)
        for value, test in tests:
            row = finished[value].get(test) or fresh[value, test]
            rows[value].append({self.by: value, "test": test, **row})
        results = []
        for value in values:
            passed = sum(row["found"] >= self.required for row in rows[value])
            limits = share_limits(passed, self.tests, CONFIDENCE)
            results.append(LengthResult(value, self.tests, passed, rows[value], *limits, seconds))
        return results

    def run_share(self, model: ProbedModel, tests: Sequence[TestKey], worker: Worker) -> list[tuple[TestKey, Row]]:
        """Run this rank's share of tests, each a value and a number, and store every batch that is finished."""
        # A rank takes consecutive tests: these have few lengths, and only prompts of one length generate together.
        start, stop = (len(tests) * rank // worker.world_size for rank in (worker.rank, worker.rank + 1))
        batches = answer_cases(
            model.generate,
            self.tokenizer,
            self.stop_id,
            ((test, self.case(*test)) for test in tests[start:stop]),
            budget=self.budget,
            rows=self.config.rows(devices.device_type(torch.device(self.device))),
            device=self.device,
            is_decided=self.is_decided,
        )
        share = []
        for batch in batches:
            by_value: dict[int, dict[int, Row]] = defaultdict(dict)
            for (value, test), row in self.score_answers(model, batch):
                by_value[value][test] = row
                share.append(((value, test), row))
            for value, rows in by_value.items():
                worker.save(value, rows)
        return share
