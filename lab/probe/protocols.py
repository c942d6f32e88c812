"""The protocols of the needle test by name: how a test is drawn, how short it can be, and how an answer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lab.probe import needles, released_needles
from lab.probe.config import ProbeConfig
from lab.probe.needles import NeedleCase


@dataclass(frozen=True)
class NeedleProtocol:
    """One way to write needle tests; lab/probe/needles.py has the arguments. `found` counts numbers in an answer.

    `draw` takes the seed, the length and the index of a test, and returns what `make_case` draws from.
    """

    make_case: Callable[..., NeedleCase]
    shortest: Callable[..., int]
    found: Callable[[str, list[str]], int]
    summary: str
    draw: Callable[[int, int, int], Any]


def released(*, llama31: bool) -> NeedleProtocol:
    """Build the protocol of the released script, for Llama-3.1 or for other models."""
    make_case = partial(released_needles.make_case, llama31=llama31)
    shortest = partial(released_needles.shortest, llama31=llama31)
    return NeedleProtocol(make_case, shortest, released_needles.found, released_needles.SUMMARY, released_needles.draw)


PROTOCOLS: Mapping[str, NeedleProtocol] = {
    "ours": NeedleProtocol(
        needles.make_case,
        needles.shortest,
        needles.found,
        needles.SUMMARY,
        draw=lambda seed, length, test: np.random.default_rng([seed, length, test]),
    ),
    "released": released(llama31=False),
    "released_llama31": released(llama31=True),
}


def shortest_test(config: ProbeConfig, tokenizer: Tokenizer) -> int:
    """Count the tokens of the shortest test."""
    shortest = PROTOCOLS[config.protocol].shortest
    return shortest(tokenizer, config.budget, seed=config.seed, digits=config.digits, needles=config.needles)


def window_warning(config: ProbeConfig, tokenizer: Tokenizer, window: int) -> str | None:
    """Write a line about a probe whose first length is beyond the window that training shows; None for any other."""
    shortest = shortest_test(config, tokenizer)
    first = next(iter(config.lengths(shortest, window)), window)
    if first <= window:
        return None
    return (
        f"probe.step={config.step}: no probed length fits the window of {window}, the first is {first} "
        f"(the shortest test takes {shortest}); raise data.window, or lower probe.step or probe.answer_budget"
    )
