"""Effective distance: the share of numbers found against their distance, and how far back it stays above a threshold.

At each distance d one-number tests of lab.probe.one_number are answered greedily; the number is found if the first
digits answered are its digits (what follows them is a matter of wording, not of retrieval). A graded score, the
log-probability in nats of the right number's tokens, each after the right ones, tells models apart that find nothing
yet.

Reach is the distance at which the share found, fitted by the non-increasing curve nearest in squares and joined
linearly, falls below a threshold; its limits are those of lab.probe.curve. Nothing is known below the first distance:
a reach that begins below the threshold is None, and so is a lower limit. An upper limit of None lies beyond the last
distance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch

from lab.data import synthetic
from lab.data.synthetic import draw_numbers
from lab.errors import ConfigError
from lab.model.loss import IGNORE
from lab.probe.answering import Retrieves
from lab.probe.config import DISTANCES
from lab.probe.curve import LengthResult, crossing, lower_curve, monotone_shares, upper_curve
from lab.probe.effective_length import Probe, ResultStore, Row, Worker
from lab.probe.haystacks import check_enough
from lab.probe.intervals import Design, full_design
from lab.probe.needles import check_spelling
from lab.probe.one_number import OneNumberCase, OneNumberTest

NEAR = 4  # the first of equally spaced distances is this part of the window; nearer, other things decide than reach
TOKENS_AT_ONCE = 16_384  # of one pass that scores answers


@dataclass(frozen=True)
class DistanceResult(LengthResult):
    """The tests of one distance; `log_prob` is a mean in nats."""

    log_prob: float = 0.0

    @property
    def distance(self) -> int:
        """Distance of the numbers."""
        return self.length

    @property
    def found(self) -> int:
        """Numbers found."""
        return self.passed


@dataclass(eq=False, repr=False)
class DistanceProbe(Probe):
    """Draws, runs and scores the one-number tests of one model."""

    by = "distance"

    def __post_init__(self) -> None:
        """Check the settings, and choose the distances.

        Raises: ConfigError, DataError.
        """
        config, tokenizer = self.config, self.tokenizer
        self.test = OneNumberTest(tokenizer, self.haystack, self.window, config.digits, config.seed)
        (number,) = draw_numbers(np.random.default_rng(config.seed), 1, config.digits)
        answer = synthetic.answer([number])
        check_spelling(tokenizer, answer, [number], lambda text: answers(text, number))
        self.distances = self.choose_distances()
        if self.source is not None:
            check_enough(self.haystack, tokenizer, len(self.test.reachable), self.window, self.source)

    @classmethod
    def beside(cls, probe: Probe) -> DistanceProbe | None:
        """Build the one-number tests of a model whose four-needle tests are built; None where none is asked for.

        Raises: ConfigError, DataError.
        """
        inputs = {field.name: getattr(probe, field.name) for field in fields(Probe)}
        return cls(**inputs) if probe.config.distance_tests else None

    def in_prompt(self, length: int) -> DistanceProbe:
        """Return the same tests in prompts that fill `length` tokens with the answer; only distances that fit are kept.

        A test hides the same number at the same distance; what differs is the text before it.
        """
        shorter = copy(self)
        shorter.test = replace(self.test, window=length)
        shorter.distances = [distance for distance in self.distances if distance in shorter.test.reachable]
        return shorter

    def choose_distances(self) -> list[int]:
        """Return the distances that the settings name, or equally spaced ones.

        Raises: ConfigError for a window without room for a test, or a distance outside it.
        """
        reachable, window = self.test.reachable, self.test.window
        if not reachable:
            least = window + reachable.start - reachable.stop + 1
            rule = f"a one-number test takes {least} tokens, and the window has {window}"
            raise ConfigError(f"probe.distance_tests={self.config.distance_tests}: {rule}; set it to 0")
        if self.config.distances is None:
            first = min(max(reachable[0], window // NEAR), reachable[-1])
            points = np.linspace(first, reachable[-1], self.config.distance_points or DISTANCES)
            return [int(point) for point in np.unique(points.round())]
        room = f"must be {reachable[0]} to {reachable[-1]}, what a window of {window} tokens has room for"
        faults = [f"probe.distances={d}: {room}; name others" for d in self.config.distances if d not in reachable]
        if faults:
            raise ConfigError(*faults)
        return list(self.config.distances)

    @property
    def design(self) -> Design:
        """All tests of a distance are run."""
        return full_design(self.config.distance_tests, ())

    @property
    def budget(self) -> int:
        """Tokens that are left for the answer."""
        return self.test.budget

    def case(self, length: int, test: int) -> OneNumberCase:
        """Draw one test of a distance."""
        return self.test.case(length, test)

    def run(
        self, model: Retrieves, worker: Worker = Worker(), store: ResultStore = ResultStore()
    ) -> Iterator[DistanceResult]:
        """Probe distance after distance; a collective call. The store keeps the tests of a distance as of a length."""
        for distance in self.distances:
            result = self.run_at(model.generate, distance, partial(self.judged, model), worker, store, required=1)
            log_prob = float(np.mean([row["log_prob"] for row in result.cases]))
            yield DistanceResult(**vars(result), log_prob=log_prob)

    def judged(self, model: Retrieves, batch: Sequence[tuple[int, OneNumberCase, str]]) -> Iterator[tuple[int, Row]]:
        """Find the numbers in the answers of a batch, and score the right answers."""
        scores = log_probs(model, [case for _, case, _ in batch], self.budget, self.device)
        for (test, case, answer), log_prob in zip(batch, scores, strict=True):
            yield (
                test,
                {
                    "prompt_hash": case.prompt_hash,
                    "numbers": case.numbers,
                    "answer": answer,
                    "found": int(answers(answer, case.numbers[0])),
                    "log_prob": round(log_prob, 6),
                },
            )


def answers(text: str, number: str) -> bool:
    """Return whether the first digits of a text are those of a number.

    Example:
        >>> answers(" 471 and", "471"), answers("4711", "471"), answers("14, 471", "471"), answers("none", "471")
        (True, True, False, False)
    """
    digits = re.search("[0-9]+", text)
    return digits is not None and digits[0].startswith(number)


def log_probs(model: Retrieves, cases: Sequence[OneNumberCase], budget: int, device: torch.device | str) -> list[float]:
    """Compute the log-probability of each case's number, summed over its tokens, each after the right ones."""
    n_prompt = len(cases[0].prompt_ids)
    tokens = torch.zeros((len(cases), n_prompt + budget), dtype=torch.int64)
    targets = torch.full_like(tokens, IGNORE)
    for row, case in enumerate(cases):
        answer = case.spelling.answer
        tokens[row, : n_prompt + len(answer)] = torch.tensor([*case.prompt_ids, *answer])
        for place in case.spelling.scored:
            targets[row, n_prompt - 1 + place] = answer[place]
    rows = max(1, TOKENS_AT_ONCE // tokens.shape[1])
    parts = zip(tokens.to(device).split(rows), targets.to(device).split(rows), strict=True)
    return [-float(loss) for part in parts for loss in model.losses(*part).double().sum(1).tolist()]


def reach(results: Sequence[DistanceResult], threshold: float) -> dict[str, float | int | None]:
    """Find where the fit of the share found falls below a threshold, with limits; the module's docstring has the Nones.

    Units: tokens, to a tenth.
    """
    first, distances = results[0].distance, [result.distance for result in results]
    curves = lower_curve(results), monotone_shares(results), upper_curve(results)
    low, fitted, high = (round(crossing(distances, curve, threshold), 1) for curve in curves)
    is_open = curves[2][-1] >= threshold
    return {
        "reach": fitted or None,
        "reach_low": low or None,
        "reach_high": None if is_open else high or first,
        "first_distance": first,
        "last_distance": distances[-1],
    }
