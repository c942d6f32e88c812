"""Multi-hop tracing: which variables hold a value that is passed from one to the next.

    VAR A = 12345 ... VAR B = VAR A ... VAR C = VAR B ...

A chain gives a number of 5 digits to its first variable and passes it on in `hops` further statements, in this order,
before random lines of the noise, or before its sentences where lines are few. The answer is all variables of the first
chain. Where there is room, a worked example with short names comes first, of at most EXAMPLE_TOKENS and half of the
prompt.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/variable_tracking.py, text and layout of
commit f682453 (2024-07-12), as in the papers' measurements; since 2025-05 (4a216f4) RULER spells "assigned" and puts
statements in lines of their own. Ours are a new example in every test and its limit of half of the prompt.
"""

from __future__ import annotations

import itertools
import string
from dataclasses import dataclass
from functools import partial

import numpy as np

from eval.engine.cases import NOISE, Distinct, Draft, Turn, Writer, draw_letters, fit
from eval.ruler import wording
from eval.ruler.sources import SENTENCE_END, Sources, insert

LETTERS, EXAMPLE_LETTERS = 5, 3  # of a variable's name
EXAMPLE_TOKENS = 500  # RULER's length for the example, with 30 of them for its answer
VALUES = 10_000, 100_000
SENTENCES = SENTENCE_END.split(NOISE)


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """Parameters of variable tracking."""

    chains: int = 1
    hops: int = 4

    def draft(self, writer: Writer, sources: Sources, turn: Turn) -> Draft:
        """Draw names, values and places."""
        example = Chains.draw(turn.rng, self, EXAMPLE_LETTERS)
        chains = Chains.draw(turn.rng, self, LETTERS, taken=example.names)
        shown = worked_example(writer, turn.room, example, chains)
        facts = {"chains": chains.chains, "values": chains.values, "places": chains.places, "example": bool(shown)}
        return Draft(
            compose=lambda sentences: shown + chains.prompt(sentences),
            least=chains.least,
            answers=tuple(chains.chains[0]),
            facts=lambda _: facts,
        )


@dataclass(frozen=True)
class Chains:
    """Variables that hold a value together; `places` are the depths of each chain's statements, rising."""

    chains: list[list[str]]
    values: list[int]
    places: list[list[float]]

    @classmethod
    def draw(cls, rng: np.random.Generator, tracing: Tracing, letters: int, taken: list[str] | None = None) -> Chains:
        """Draw distinct names and values, and places anywhere."""
        names = Distinct(partial(draw_letters, rng, string.ascii_uppercase, letters), taken)
        numbers = Distinct(lambda: str(rng.integers(*VALUES)))
        size = tracing.hops + 1
        return cls(
            [[names.next() for _ in range(size)] for _ in range(tracing.chains)],
            [int(number) for number in numbers.first(tracing.chains)],
            [np.sort(rng.random(size)).tolist() for _ in range(tracing.chains)],
        )

    @property
    def names(self) -> list[str]:
        """All variables."""
        return [name for chain in self.chains for name in chain]

    @property
    def least(self) -> int:
        """Sentences of noise: one more than there are statements."""
        return len(self.names) + 1

    def prompt(self, sentences: int) -> str:
        """Write the statements between the whole lines of so many sentences of noise, or between the sentences."""
        lines = sentences // len(SENTENCES)
        pieces = [f"{NOISE}\n"] * lines
        if lines <= len(self.names):
            pieces = (SENTENCES * (lines + 1))[:sentences]
        statements = [
            (place, statement)
            for chain, value, places in zip(self.chains, self.values, self.places, strict=True)
            for place, statement in zip(places, assignments(chain, value), strict=True)
        ]
        statements.sort(key=lambda pair: pair[0])
        free = len(pieces) - len(statements) + 1
        places = [int(place * free) + number for number, (place, _) in enumerate(statements)]  # never side by side
        context = " ".join(insert(pieces, [statement for _, statement in statements], places))
        return wording.TRACING.format(context=context, query=self.values[0], n=len(self.chains[0]))


def assignments(chain: list[str], value: int) -> list[str]:
    """State a chain, with RULER's blank after a hop.

    Example:
        >>> assignments(["A", "B", "C"], 12345)
        ['VAR A = 12345', 'VAR B = VAR A ', 'VAR C = VAR B ']
    """
    return [f"VAR {chain[0]} = {value}"] + [f"VAR {new} = VAR {old} " for old, new in itertools.pairwise(chain)]


def worked_example(writer: Writer, room: int, example: Chains, chains: Chains) -> str:
    """Write the example with its answer; nothing where it would take more than half of the room."""

    def solved(sentences: int) -> str:
        return f"{example.prompt(sentences)} {' '.join(example.chains[0])}\n\n"

    own, least, main = min(EXAMPLE_TOKENS, room // 2), example.least, chains.prompt(chains.least)
    if writer.count(solved(least)) > own:
        return ""
    shown = solved(fit(lambda sentences: writer.count(solved(sentences)), own, least))
    return shown if writer.count(shown + main) <= room else ""
