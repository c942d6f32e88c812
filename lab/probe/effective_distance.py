"""Effective distance: retrieval accuracy against the distance of a number, and how far back a model retrieves.

A one-number test hides a single number an exact number of tokens before the end of the prompt. It is a piece of
haystack with one needle in it, the question and the answer's first words, without a task line. Prompt and answer fill
the window, or another length, at every distance:

    index     0 .. | needle ... number . | haystack | question, first words | number .
                                |<------------------ d ----------------->|
    d = last token of the prompt - first token of the needle's number

Tokens that begin every answer, such as a blank, belong to the prompt, so that only the number is left to answer. A
model that retrieves but does not keep to the wording then passes too. With four needles the nearest two decide, as two
suffice; here nothing but the distance changes.

The number is retrieved if the first digits of the answer are its digits. The log-probability in nats of the right
number's tokens, each after the right ones, also distinguishes models that retrieve nothing yet. Reach is the largest
distance at which retrieval accuracy is at least a threshold (lab.probe.reach).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from lab.core.errors import ConfigError
from lab.core.types import IGNORE, Row
from lab.counts import SavedCounts
from lab.data import synthetic
from lab.data.encoding import inside_text
from lab.data.tokenizer import special_ends
from lab.positions import Distance
from lab.probe import needles
from lab.probe.effective_length import NeedleProbe
from lab.probe.limits import LengthResult
from lab.probe.probe import Probe, ProbedModel, TestKey, Worker

SPARE_TOKENS = 64  # of haystack, among which a word begins
TOKENS_AT_ONCE = 16_384  # of one pass that scores answers
QUESTION = synthetic.QUESTION + synthetic.ANSWER_PREFIX


class EncodedNumber(NamedTuple):
    """A number in tokens: its needle, the number's index in that, and its answer without what begins every answer.

    `scored` are the indices of the answer's tokens that contain digits. `tail` ends the prompt: the question, the first
    words of the answer, and what begins every answer.
    """

    needle: list[int]
    offset: int
    answer: list[int]
    scored: list[int]
    tail: list[int]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Tokens of the needle before its number's first and after it, of the answer, and of the prompt's end."""
        return self.offset, len(self.needle) - 1 - self.offset, len(self.answer), len(self.tail)


@dataclass(frozen=True, eq=False)
class OneNumberCase(needles.NeedleCase):
    """One test, with the tokens of the right answer and which of them are the number's."""

    encoded: EncodedNumber


class NoRoom(ConfigError):
    """The window is too short for a test."""


@dataclass(eq=False, repr=False)
class DistanceProbe(Probe[OneNumberCase]):
    """The one-number tests of one model; a test is a function of (seed, distance, its number).

    A number that takes more tokens than the longest of SAMPLE_NUMBERS is sampled again. Prompts begin with the tokens
    `head` and end with `tail`, of which the last `lead` begin every answer. `longest` are the most tokens of each part
    of an encoded number. The window has room for `reachable` distances. `question` is the text that ends prompts.
    """

    by = "distance"
    question: str = field(default=QUESTION, kw_only=True)

    def __post_init__(self) -> None:
        """Measure the parts of a test, check the settings, and choose the distances.

        Raises: ConfigError, DataError.
        """
        config, tokenizer = self.config, self.tokenizer
        (number,) = synthetic.sample_numbers(np.random.default_rng(config.seed), 1, config.digits)
        passes = partial(starts_with_number, number=number)
        needles.check_encoding(tokenizer, synthetic.answer([number]), [number], passes)
        numbers = synthetic.sample_numbers(np.random.default_rng(0), needles.SAMPLE_NUMBERS, config.digits)
        self.lead = 0
        samples = [self.encode_number(number) for number in numbers]
        leads = {tuple(sample.answer[: sample.scored[0]]) for sample in samples}
        before, after, answer, tail = np.max([sample.sizes for sample in samples], axis=0).tolist()
        # Tokens that begin every answer move to the prompt. If they differ, the prompt would depend on the number.
        if len(leads) == 1:
            self.lead = len(leads.pop())
        self.head = special_ends(tokenizer)[0]
        self.tail = self.encode_number(numbers[0]).tail
        self.budget = answer - self.lead
        self.longest = (before, after, self.budget, tail + self.lead)
        self.prompt_tokens = self.window - self.budget
        self.reachable = range(tail + self.lead + after, self.prompt_tokens - len(self.head) - before)
        self.required = 1
        self.tests = config.distance_tests
        self.distances = self.choose_distances()
        needles.check_enough(self.haystack, tokenizer, len(self.reachable), self.window, self.source)

    def choose_distances(self) -> list[int]:
        """Return the distances that the settings name, or equally spaced ones.

        Raises: ConfigError for a window without room for a test, or a distance outside it.
        """
        reachable, config = self.reachable, self.config
        outside = [distance for distance in config.distances or () if distance not in reachable]
        if not reachable and config.distances is None and config.distance_points is None:
            raise NoRoom(
                f"probe.distance_tests={config.distance_tests}: a window of {self.window} tokens has no room for a"
                f" test, which takes {len(self.head) + sum(self.longest) + 1}; set it to 0, or raise data.window"
            )
        if outside or not reachable:
            raise ConfigError(
                f"probe.distances={outside or config.distances}: must be {reachable.start} to {reachable.stop - 1}, "
                f"what a window of {self.window} tokens has room for; name others, or set probe.distance_tests to 0"
            )
        if config.distances is not None:
            return list(config.distances)
        # Nearer numbers than a quarter of the window test other things than reach.
        first = min(max(reachable[0], self.window // 4), reachable[-1])
        points = np.linspace(first, reachable[-1], config.distance_points or 14)
        # Small windows have fewer distances than points: equal ones are tested once.
        return np.unique(points.round().astype(int)).tolist()

    def encode_number(self, number: str) -> EncodedNumber:
        """Encode a number's needle and question, with the first `lead` tokens of its answer, and what is left of it."""
        text = synthetic.answer([number])
        encoding = inside_text(self.tokenizer).encode(text, add_special_tokens=False)
        begin = text.index(number)
        starts, ends = np.array(encoding.offsets[self.lead :]).T
        # A token can contain a digit together with other characters, so that any overlap counts.
        scored = np.flatnonzero((ends > begin) & (starts < begin + len(number))).tolist()
        return EncodedNumber(
            *needles.encode_needle(self.tokenizer, number),
            encoding.ids[self.lead :],
            scored,
            needles.plain_ids(self.tokenizer, self.question) + encoding.ids[: self.lead],
        )

    def case(self, distance: int, test: int) -> OneNumberCase:
        """Sample one test of a distance; its needle is at the beginning of a word.

        Raises: DataError for an empty haystack.
        """
        # The last number distinguishes this stream from that of a four-needle test of the same length.
        generator = np.random.default_rng([self.config.seed, distance, test, 1])
        number, encoded = self.sample_number(generator)
        _, after, _, tail = encoded.sizes
        n_hay = self.prompt_tokens - len(self.head) - len(encoded.needle) - tail
        before = n_hay - (distance - tail - after)  # tokens of haystack in front of the needle
        # The haystack begins later by up to SPARE_TOKENS, so that the needle, at a fixed index, begins a word.
        hay, words = needles.cut_haystack(self.tokenizer, self.haystack, n_hay + SPARE_TOKENS, generator)
        shifts = words - before
        shifts = shifts[(shifts >= 0) & (shifts <= SPARE_TOKENS)]
        skipped = int(shifts[0]) if len(shifts) else 0
        parts = self.head, [(encoded.needle, encoded.offset)], encoded.tail
        case = needles.compose([number], hay[skipped:][:n_hay], [before], parts)
        return OneNumberCase(**vars(case), encoded=encoded)

    def sample_number(self, generator: np.random.Generator) -> tuple[str, EncodedNumber]:
        """Sample a number that is no longer in tokens than the longest of the first ones."""
        while True:
            (number,) = synthetic.sample_numbers(generator, 1, self.config.digits)
            encoded = self.encode_number(number)
            # Another tail would make the end of the prompt depend on the number.
            if (np.array(encoded.sizes) <= self.longest).all() and encoded.tail == self.tail:
                return number, encoded

    def run(self, model: ProbedModel, worker: Worker = Worker()) -> Iterator[LengthResult]:
        for distance in self.distances:
            yield self.run_at(model, distance, worker)

    def score_answers(
        self, model: ProbedModel, batch: Sequence[tuple[TestKey, OneNumberCase, str]]
    ) -> Iterator[tuple[TestKey, Row]]:
        """Find the numbers in the answers of a batch, and score the right answers."""
        scores = log_probs(model, [case for _, case, _ in batch], self.budget, self.device)
        for (test, case, answer), log_prob in zip(batch, scores):
            row = {
                "prompt_hash": case.prompt_hash,
                "numbers": case.numbers,
                "answer": answer,
                "found": int(starts_with_number(answer, case.numbers[0])),
                "log_prob": round(log_prob, 6),
            }
            yield test, row

    def describe_tests(self) -> Row:
        """Return the properties of the tests, apart from their distances."""
        return {
            "needles": 1,
            "digits": self.config.digits,
            "prompt_tokens": self.prompt_tokens,
            "haystack": needles.hash_text(self.haystack),
            "seed": self.config.seed,
        }

    def describe_outcome(self, result: LengthResult) -> Row:
        """Return the numbers retrieved, and the mean log-probability in nats."""
        log_prob = round(float(np.mean([case["log_prob"] for case in result.cases])), 6)
        return {"found": result.passed, "log_prob": log_prob}


def build_distance_probe(probe: NeedleProbe) -> DistanceProbe | None:
    """Build the one-number tests on the settings and the text of four-needle tests.

    Returns None if the settings have no such tests, or if the window is too short for one.
    """
    if not probe.config.distance_tests:
        return None
    try:
        return DistanceProbe(
            probe.config,
            probe.tokenizer,
            probe.haystack,
            window=probe.window,
            stop_id=probe.stop_id,
            device=probe.device,
            source=probe.source,
        )
    except NoRoom:  # the start of the run reports it
        return None


def starts_with_number(text: str, number: str) -> bool:
    """Return whether the first digits of a text are those of a number.

    Example:
        >>> [starts_with_number(text, "471") for text in (" 471 and", "4,711", "14, 471", "none")]
        [True, True, False, False]
    """
    return any(first.startswith(number) for first in needles.first_numbers(text))


def log_probs(
    model: ProbedModel, cases: Sequence[OneNumberCase], budget: int, device: torch.device | str
) -> list[float]:
    """Compute the log-probability of each case's number, summed over its tokens, each after the right ones."""
    tokens, targets = (x.to(device) for x in lay_out_answers(cases, budget))
    rows = max(1, TOKENS_AT_ONCE // tokens.shape[1])
    parts = map(model.losses, tokens.split(rows), targets.split(rows))
    return (-torch.cat([*parts]).double().sum(1)).tolist()


def lay_out_answers(cases: Sequence[OneNumberCase], budget: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Put each case's right answer behind its prompt; the targets are the number's tokens, IGNORE elsewhere.

    Shapes: int64 (cases, prompt + budget) both; a target is at the index of the token before it.
    """
    n_prompt = len(cases[0].prompt_ids)
    tokens = torch.zeros((len(cases), n_prompt + budget), dtype=torch.int64)
    targets = torch.full_like(tokens, IGNORE)
    for row, case in enumerate(cases):
        answer = case.encoded.answer
        tokens[row, : n_prompt + len(answer)] = torch.tensor([*case.prompt_ids, *answer])
        # The logits at an index predict the next token, so that targets are one index before their tokens.
        for index in case.encoded.scored:
            targets[row, n_prompt - 1 + index] = answer[index]
    return tokens, targets


def map_counts_to_distance(counts: SavedCounts | None, method: Distance, length: int) -> SavedCounts | None:
    """Return counts whose f(i) is f of the relative position that a method gives to distance i at the end of a prompt.

    Between two positions f is linear. Counts end where the first position is beyond what was counted.
    """
    if counts is None:
        return None
    keys = torch.arange(length).flip(0)
    # Of the last query to the keys, nearest first, so that index i is distance i.
    rel_pos = method.rel_pos(keys[:1], keys).numpy()[0]
    f = rel_pos[np.logical_and.accumulate(rel_pos <= len(counts.f) - 1)]
    if len(f):
        f = np.interp(f, np.arange(len(counts.f)), counts.f)
    return replace(counts, f=f.round().astype(np.int64))
