"""The protocols of the needle test by name: how a test is drawn, how short it can be, and how an answer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from lab.probe import needles, string_needles
from lab.probe.config import ProbeConfig
from lab.probe.needles import NeedleCase


@dataclass(frozen=True)
class NeedleProtocol:
    """One way to write needle tests; lab/probe/needles.py has the arguments. `found` counts numbers in an answer."""

    make_case: Callable[..., NeedleCase]
    shortest: Callable[..., int]
    found: Callable[[str, list[str]], int]
    summary: str


PROTOCOLS: Mapping[str, NeedleProtocol] = {
    "ours": NeedleProtocol(needles.make_case, needles.shortest, needles.found, needles.SUMMARY),
    "string": NeedleProtocol(
        string_needles.make_case, string_needles.shortest, string_needles.found, string_needles.SUMMARY
    ),
}


def shortest_test(config: ProbeConfig, tokenizer: Tokenizer) -> int:
    """Count the tokens of the shortest test of a config whose sizes are filled in."""
    sizes = {"digits": config.digits, "needles": config.needles}
    return PROTOCOLS[config.protocol].shortest(tokenizer, config.answer_budget, seed=config.seed, **sizes)


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
