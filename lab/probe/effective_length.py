"""Effective context length: four-needle tests at growing lengths, until one fails.

A length passes when at least `threshold` of its tests find `required` numbers or more. The effective length is the last
length before the first that fails (arXiv:2410.18745, section 3). That section states no threshold: 0.8 is ours. The
outcome is a function of (model, seed, length) alone: test k of a length is drawn from (seed, length, k). Tests run in
this order, so that a sequential probe runs the first tests of a full one.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lab.data import synthetic
from lab.errors import ConfigError
from lab.model import devices
from lab.probe import needles, released_needles
from lab.probe.config import ProbeConfig
from lab.probe.limits import Design, LengthResult, exact_limits, sequential_design
from lab.probe.needles import Case, NeedleCase

SPELLED = 16  # numbers that a tokenizer must decode unchanged
AT_ONCE = 4  # lengths that several ranks divide; of more, those with the longest prompts would be waited for
LOOK_EVERY = 8  # new tokens between two looks at what the rows of a batch have answered
AnyCase = TypeVar("AnyCase", bound=Case)
Decided = Callable[[AnyCase, str], bool]
Generate = Callable[..., Tensor]
"""Continues prompts, int64 (B, T), greedily by at most n_tokens: int64 (B, n); `ended` may end rows early."""
Row = dict[str, Any]


def answered(
    model: Generate,
    tokenizer: Tokenizer,
    stop_id: int | None,
    cases: Iterable[tuple[Any, AnyCase]],
    *,
    budget: int,
    rows: int,
    device: torch.device | str = "cpu",
    decided: Decided[AnyCase] | None = None,
) -> Iterator[list[tuple[Any, AnyCase, str]]]:
    """Answer numbered cases, up to `rows` at a time, in `budget` tokens each; an answer ends before the stop token.

    With `decided`, an answer ends with the token after which `decided` holds, and the model may end it there. What
    holds for a text must hold for every text that begins with it.
    """
    for batch in side_by_side(cases, rows):
        drawn = [case for _, case in batch]
        prompts = torch.from_numpy(np.stack([np.asarray(case.prompt_ids, dtype=np.int64) for case in drawn]))
        generate = model if decided is None else partial(model, ended=partial(ended, tokenizer, decided, drawn))
        answers = generate(prompts.to(device), budget).tolist()
        ids = [row[: row.index(stop_id)] if stop_id in row else row for row in answers]
        yield [
            (number, case, text_of(tokenizer, row, decided and partial(decided, case)))
            for (number, case), row in zip(batch, ids, strict=True)
        ]


def ended(
    tokenizer: Tokenizer, decided: Decided[AnyCase], cases: Sequence[AnyCase], answers: Tensor, rows: Tensor
) -> Tensor:
    """Find which answers are decided, at every LOOK_EVERY-th token: int64 (rows, n), int64 (rows,) -> bool (rows,)."""
    if answers.shape[1] % LOOK_EVERY:
        return torch.zeros(len(rows), dtype=torch.bool)
    texts = tokenizer.decode_batch(answers.tolist())
    return torch.tensor([decided(cases[row], text) for row, text in zip(rows.tolist(), texts, strict=True)])


def text_of(tokenizer: Tokenizer, ids: list[int], decided: Callable[[str], bool] | None) -> str:
    """Decode an answer up to the token after which it is decided, if it is; the same wherever generation ended it."""
    text: str = tokenizer.decode(ids)
    if decided is not None and decided(text):
        last = bisect_left(range(len(ids)), True, key=lambda place: decided(tokenizer.decode(ids[: place + 1])))
        text = tokenizer.decode(ids[: last + 1])
    return text


def side_by_side(cases: Iterable[tuple[Any, AnyCase]], rows: int) -> Iterator[list[tuple[Any, AnyCase]]]:
    """Gather cases of one length; the key cache takes no padding."""
    waiting: dict[int, list[tuple[Any, AnyCase]]] = {}
    for number, case in cases:
        length = len(case.prompt_ids)
        waiting.setdefault(length, []).append((number, case))
        if len(waiting[length]) == rows:
            yield waiting.pop(length)
    yield from waiting.values()


@dataclass(frozen=True)
class Worker:
    """One of the processes that run the tests of a probe; `gather` joins the lists of all, a collective call."""

    rank: int = 0
    world_size: int = 1
    gather: Callable[[list[Any]], list[Any]] = list


class ResultStore:
    """Where results of tests are kept and looked up; this one keeps none."""

    def known(self, length: int) -> Mapping[int, Row]:
        """Return the rows of finished tests of a length by test number, the same on every rank."""
        return {}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Store the rows of tests that this process has just finished."""


@dataclass(eq=False, repr=False)
class Probe:
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
    case: ClassVar[Callable[..., NeedleCase]]  # draws a test of a length or distance
    judged: ClassVar[Callable[..., Iterable[tuple[Any, Row]]]]  # scores the answers of a batch
    decided: ClassVar[Callable[..., bool] | None] = None  # whether no more tokens change an answer's score
    design: Design = field(init=False)  # where the tests of a length or distance stop
    budget: int = field(init=False)  # tokens that are left for the answer
    required: int = field(init=False)  # numbers that must be found for a test to pass

    def run_at(
        self, model: Any, place: int, worker: Worker = Worker(), store: ResultStore = ResultStore()
    ) -> LengthResult:
        """Run the tests of one length or distance; a collective call."""
        return self.run_together(model, [place], worker, store)[0]

    def run_together(self, model: Any, places: Sequence[int], worker: Worker, store: ResultStore) -> list[LengthResult]:
        """Run the tests of lengths or distances round after round until the design stops; a collective call.

        A round has the same tests on any number of ranks. A rank takes consecutive ones, which are of few lengths, as
        those of one length generate together. The model has `generate`, and for one-number tests `losses`.
        """
        finished = {place: store.known(place) for place in places}
        rows: dict[int, list[Row]] = {place: [] for place in places}
        passed = dict.fromkeys(places, 0)
        ran = 0
        began = time.perf_counter()
        for look in self.design.looks:
            tests = [(place, test) for place in places for test in range(len(rows[place]), look)]
            todo = [(place, test) for place, test in tests if test not in finished[place]]
            start, stop = (len(todo) * rank // worker.world_size for rank in (worker.rank, worker.rank + 1))
            fresh: list[tuple[tuple[int, int], Row]] = []
            cases = (((place, test), self.case(place, test)) for place, test in todo[start:stop])
            asked = (model.generate, self.tokenizer, self.stop_id, cases)
            most = self.config.rows(devices.kind(torch.device(self.device)))
            for batch in answered(*asked, budget=self.budget, rows=most, device=self.device, decided=self.decided):
                done = list(self.judged(model, batch))
                for place in {place for (place, _), _ in done}:
                    store.keep(place, {test: row for (at, test), row in done if at == place})
                fresh += done
            joined = dict(worker.gather(fresh))
            ran += len(joined)
            for place, test in tests:
                row = finished[place].get(test) or joined[place, test]
                rows[place].append({self.by: place, "test": test, **row})
                passed[place] += row["found"] >= self.required
            if all(self.design.is_over(look, passed[place]) for place in places):
                break
        seconds = time.perf_counter() - began
        results = []
        for place in places:
            limits = exact_limits(self.design, len(rows[place]), passed[place], self.config.confidence)
            share_s = round(seconds * len(rows[place]) / ran, 3) if ran else None
            results.append(LengthResult(place, len(rows[place]), passed[place], rows[place], *limits, share_s))
        return results


@dataclass(eq=False, repr=False)
class NeedleProbe(Probe):
    """The four-needle tests of one model."""

    by = "length"

    def __post_init__(self) -> None:
        """Check the settings, and choose the lengths.

        Raises: ConfigError, DataError.
        """
        tokenizer = self.tokenizer
        self.config = config = with_budget(self.config, tokenizer)
        size = config.round_size if config.sequential else config.tests
        self.design = sequential_design(config.tests, config.all_thresholds, config.error_rate, size)
        self.budget, self.required = config.budget, config.required
        self.protocol = protocol_of(config)
        numbers = synthetic.draw_numbers(np.random.default_rng(config.seed), SPELLED, config.digits)
        passes = lambda text: self.protocol.found(text, numbers) == SPELLED  # noqa: E731
        needles.check_spelling(tokenizer, synthetic.answer(numbers), numbers, passes)
        faults = []
        tokens = answer_tokens(config, tokenizer)
        if config.budget < tokens:
            rule = f"an answer of {config.needles} numbers takes {tokens} tokens; raise it"
            faults.append(f"probe.answer_budget={config.budget}: {rule}")
        self.shortest = self.protocol.shortest(config, tokenizer)
        self.lengths = config.lengths(self.shortest, self.window)
        if not self.lengths:
            rule = f"no multiple of probe.step={config.step} up to it has room for a test, {self.shortest} tokens"
            longest = config.longest(self.window)
            faults.append(f"probe.max_length={longest}: {rule}; raise probe.max_length or lower probe.step")
        if faults:
            raise ConfigError(*faults)

    def check_haystack(self, length: int) -> None:
        """Refuse a file whose text a test of this length would repeat, with a DataError."""
        n_hay = length - self.shortest + self.config.needles
        needles.check_enough(self.haystack, self.tokenizer, n_hay, length, self.source)

    def case(self, length: int, test: int) -> NeedleCase:
        drawn: NeedleCase = self.protocol.draw_case(self.config, self.tokenizer, self.haystack, length, test)
        return drawn

    def run(self, model: Any, worker: Worker = Worker(), store: ResultStore = ResultStore()) -> Iterator[LengthResult]:
        """Probe length after length: all up to `max_length`, or, without one, until a length fails every threshold."""
        one_by_one = self.config.sequential or self.config.max_length is None
        at_once = 1 if one_by_one else min(AT_ONCE, worker.world_size)
        for start in range(0, len(self.lengths), at_once):
            results = self.run_together(model, self.lengths[start : start + at_once], worker, store)
            yield from results
            if self.config.max_length is None and results[-1].accuracy < self.config.all_thresholds[0]:
                return

    def decided(self, case: NeedleCase, text: str) -> bool:
        """Return whether a text holds all numbers, whatever follows it: more digits would make one another number.

        A text that lacks a number is never decided, as a later token may complete it, which `found_each` records.
        """
        return bool(self.protocol.found(needles.UNFINISHED.sub("", text), case.numbers) == len(case.numbers))

    def judged(self, _: Any, batch: Sequence[tuple[int, NeedleCase, str]]) -> list[tuple[int, Row]]:
        return [(test, self.judge(case, answer)) for test, case, answer in batch]

    def judge(self, case: NeedleCase, answer: str) -> Row:
        """Count the numbers in an answer."""
        found_each = [self.protocol.found(answer, [number]) == 1 for number in case.numbers]
        return {
            "prompt_hash": case.prompt_hash,
            "numbers": case.numbers,
            "depths": [round(depth, 6) for depth in case.depths],
            "distances": case.distances,
            "answer": answer,
            "found": sum(found_each),
            "found_each": found_each,
        }


def answer_tokens(config: ProbeConfig, tokenizer: Tokenizer) -> int:
    return len(needles.plain_ids(tokenizer, synthetic.answer(["8" * config.digits] * config.needles)))


def with_budget(config: ProbeConfig, tokenizer: Tokenizer) -> ProbeConfig:
    """Set the budget of answers that is left to the lab: no less than the numbers take in the tokenizer."""
    if config.answer_budget is not None or config.protocol != "ours":
        return config
    return replace(config, answer_budget=max(config.budget, answer_tokens(config, tokenizer)))


def protocol_of(config: ProbeConfig) -> Any:
    """Choose the module that draws a protocol's tests and counts what an answer has found."""
    return needles if config.protocol == "ours" else released_needles
