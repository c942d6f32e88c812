"""The protocols of the needle test by name: how a test is drawn, how short it can be, and how an answer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.probe import needles, string_needles
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
