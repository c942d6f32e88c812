"""The protocols of the needle test by name: how a test is drawn, how short it can be, and how an answer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from lab.probe import needles, string_needles
from lab.probe.needles import NeedleCase


class DrawCase(Protocol):
    """Draws one test."""

    def __call__(
        self,
        tokenizer: Tokenizer,
        haystack: str,
        length: int,
        answer_budget: int,
        generator: np.random.Generator,
        *,
        digits: int,
        needles: int,
    ) -> NeedleCase:
        """Draw one test of `length` tokens with `needles` numbers of `digits` digits."""
        ...


class CountShortest(Protocol):
    """Counts the tokens of the shortest test."""

    def __call__(self, tokenizer: Tokenizer, answer_budget: int, *, digits: int, needles: int, seed: int) -> int:
        """Count the tokens of the shortest test with `needles` numbers of `digits` digits."""
        ...


@dataclass(frozen=True)
class NeedleProtocol:
    """One way to write needle tests; `found` counts the numbers that an answer holds."""

    make_case: DrawCase
    shortest: CountShortest
    found: Callable[[str, list[str]], int]
    summary: str


PROTOCOLS: Mapping[str, NeedleProtocol] = {
    "ours": NeedleProtocol(needles.make_case, needles.shortest, needles.found, needles.SUMMARY),
    "string": NeedleProtocol(
        string_needles.make_case, string_needles.shortest, string_needles.found, string_needles.SUMMARY
    ),
}
