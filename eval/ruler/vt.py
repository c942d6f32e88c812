"""Multi-hop tracing: which variables hold a value that is passed from one to the next.

    VAR A = 12345 ... VAR B = VAR A ... VAR C = VAR B ...

A chain gives a number of 5 digits to its first variable and passes it on in HOPS further statements, in this order,
before random lines of the noise, or before its sentences where lines are few. The answer is all variables of the chain.
Where there is room, a worked example with short names comes first, of at most EXAMPLE_TOKENS and half of the prompt.

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
from eval.ruler.sources import SENTENCE_END, Sources, insert

# The wording is verbatim from NVIDIA/RULER, scripts/data/synthetic/constants.py (Apache 2.0).
TRACING = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {query} in the text above. Answer: According to the chain(s) of "
    "variable assignment in the text above, {n} variables are assgined the value {query}, they are:"
)
HOPS = 4
LETTERS, EXAMPLE_LETTERS = 5, 3  # of a variable's name
EXAMPLE_TOKENS = 500  # RULER's length for the example, with 30 of them for its answer
VALUES = 10_000, 100_000
LEAST = HOPS + 2  # sentences of noise: one more than there are statements
SENTENCES = SENTENCE_END.split(NOISE)


@dataclass(frozen=True)
class Chain:
    """Variables that hold a value together; `places` are the depths of their statements, rising."""

    names: list[str]
    value: int
    places: list[float]

    @classmethod
    def draw(cls, rng: np.random.Generator, letters: int, taken: list[str] | None = None) -> Chain:
        """Draw distinct names and a value, and places anywhere."""
        names = Distinct(partial(draw_letters, rng, string.ascii_uppercase, letters), taken)
        return cls(
            [names.next() for _ in range(HOPS + 1)], int(rng.integers(*VALUES)), np.sort(rng.random(HOPS + 1)).tolist()
        )

    def prompt(self, sentences: int) -> str:
        """Write the statements between the whole lines of so many sentences of noise, or between the sentences."""
        lines = sentences // len(SENTENCES)
        pieces = [f"{NOISE}\n"] * lines
        if lines <= len(self.names):
            pieces = (SENTENCES * (lines + 1))[:sentences]
        # a hop ends with RULER's blank
        hops = [f"VAR {new} = VAR {old} " for old, new in itertools.pairwise(self.names)]
        free = len(pieces) - len(self.names) + 1
        places = [int(place * free) + number for number, place in enumerate(self.places)]  # never side by side
        context = " ".join(insert(pieces, [f"VAR {self.names[0]} = {self.value}", *hops], places))
        return TRACING.format(context=context, query=self.value, n=len(self.names))


def tracing(writer: Writer, _: Sources, turn: Turn) -> Draft:
    """Draw names, a value and places; write an example with its answer where it takes at most half of the room."""
    example = Chain.draw(turn.rng, EXAMPLE_LETTERS)
    chain = Chain.draw(turn.rng, LETTERS, taken=example.names)

    def solved(sentences: int) -> str:
        return f"{example.prompt(sentences)} {' '.join(example.names)}\n\n"

    shown, own = "", min(EXAMPLE_TOKENS, turn.room // 2)
    if writer.count(solved(LEAST)) <= own:
        shown = solved(fit(lambda sentences: writer.count(solved(sentences)), own, LEAST))
        shown = shown if writer.count(shown + chain.prompt(LEAST)) <= turn.room else ""
    facts = {"chains": [chain.names], "values": [chain.value], "places": [chain.places], "example": bool(shown)}
    return Draft(
        compose=lambda sentences: shown + chain.prompt(sentences),
        least=LEAST,
        answers=tuple(chain.names),
        facts=lambda _: facts,
    )
